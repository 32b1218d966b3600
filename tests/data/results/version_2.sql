BEGIN TRANSACTION;
CREATE TABLE autoplan_schema (
	id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	written_by VARCHAR(40) NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "autoplan_schema" VALUES(1,2,'autoplan 0.1.0');
CREATE TABLE clusters (
	sha256 VARCHAR(64) NOT NULL, 
	name VARCHAR(200), 
	num_devices INTEGER, 
	cluster_json TEXT, 
	PRIMARY KEY (sha256)
);
INSERT INTO "clusters" VALUES('4cb0e0f7a800c99eb4c251c89d919ac09abea2adc787ccfb14ec8b3b947348a1','two by two',4,'{"all_reduce":"auto","device":{"memory_bandwidth_bytes_per_s":100000000000,"memory_bytes":1000000000,"name":"device","updates":[]},"devices_per_node":2,"inter_node":{"alpha_s":5e-05,"bandwidth_bytes_per_s":1200000000,"name":"10 Gb/s Ethernet, TCP","source":"9.43 Gb/s by iperf and ring slopes within 2-4 % of line rate (facts/mgs.md sections 2, 3.1)"},"intra_node":{"alpha_s":8e-06,"bandwidth_bytes_per_s":10000000000,"name":"PCIe 3.0 x16","source":"15.75 GB/s raw; 10 GB/s is the effective slope .23-.37 ns/B of ddl-benchmarks'' one-node runs; 8 us: llm-analysis"},"measured":[],"name":"two by two","nics_per_node":1,"nodes":2,"schema":"autoplan-cluster/1"}');
CREATE TABLE experiments (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	workload_sha256 VARCHAR(64) NOT NULL, 
	cluster_sha256 VARCHAR(64) NOT NULL, 
	objective VARCHAR(40) NOT NULL, 
	identities_json TEXT NOT NULL, 
	seed BIGINT, 
	spec_json TEXT, 
	environment_json TEXT, 
	created_at_utc DATETIME NOT NULL, 
	finished_at_utc DATETIME, 
	stopped_by VARCHAR(40), 
	num_trials BIGINT, 
	num_candidates BIGINT, 
	search_s DOUBLE, 
	objective_lower_bound_s DOUBLE, 
	PRIMARY KEY (id), 
	UNIQUE (name), 
	FOREIGN KEY(workload_sha256) REFERENCES workloads (sha256), 
	FOREIGN KEY(cluster_sha256) REFERENCES clusters (sha256)
);
INSERT INTO "experiments" VALUES(1,'small','6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514','4cb0e0f7a800c99eb4c251c89d919ac09abea2adc787ccfb14ec8b3b947348a1','step_time','{"cluster":"4cb0e0f7a800c99eb4c251c89d919ac09abea2adc787ccfb14ec8b3b947348a1","job":"5ff45bd71fa35ea1f94c9dd34945c1fb7c83f86b530ca53fed6b69ea2342884f","objective":"step_time","space":"931131431e1ece809223786cd634b4ff0f56d429a9239f5e6da80f7ec2e88184","workload":"6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514"}',0,'{"budget":{"exhaustive_plans":0,"seconds":60,"seed":0,"trials":30,"workers":1},"job":{"global_batch":16,"memory_headroom":0.1,"optimizer":"momentum","precision":"float32"},"space":{"cap_bytes":[26214400],"cut_shift":3,"cuts":"open","densities":[1],"equal_replicas":false,"group_min_elements":0,"grouping":["exact"],"microbatches":[],"rank_orders":["replica","stage"],"recompute":["never","where-needed"],"replicas":[],"schedules":["1f1b","gpipe"],"schema":"autoplan-space/1","stages":[]}}','{"cores":2,"packages":{"autoplan":"0.1.0","numba":"0.68.1","numpy":"2.4.6","optuna":"5.0.0","ray":"2.60.0","sqlalchemy":"2.1.9"},"platform":"Linux-6.18.44-fc-v657-x86_64-with-glibc2.36","processor":"x86_64","python":"3.11.7"}','2026-11-30 22:04:15.652986','2026-11-30 22:04:15.716214','trials',1,NULL,NULL,2.5);
CREATE TABLE plans (
	sha256 VARCHAR(64) NOT NULL, 
	num_stages INTEGER NOT NULL, 
	num_devices INTEGER NOT NULL, 
	microbatches INTEGER NOT NULL, 
	schedule VARCHAR(40) NOT NULL, 
	num_gradient_groups INTEGER NOT NULL, 
	plan_json TEXT NOT NULL, 
	PRIMARY KEY (sha256)
);
INSERT INTO "plans" VALUES('63c5bb0ec757c069ce68140ad79c5a9af556f449304f37d48b2f1b0397b77648',2,2,4,'1f1b',0,'{"microbatches":4,"rank_order":"replica","schedule":"1f1b","schema":"autoplan-plan/1","stages":[{"groups":[{"density":1,"layers":[0,3]}],"layers":[0,3],"recompute":false,"replicas":1},{"groups":[{"density":1,"layers":[3,8]}],"layers":[3,8],"recompute":false,"replicas":1}]}');
CREATE TABLE real_run_rounds (
	real_run_id INTEGER NOT NULL, 
	round_number INTEGER NOT NULL, 
	wall_s DOUBLE, 
	virtual_s DOUBLE, 
	foreign_load_share DOUBLE, 
	PRIMARY KEY (real_run_id, round_number), 
	FOREIGN KEY(real_run_id) REFERENCES real_runs (id)
);
INSERT INTO "real_run_rounds" VALUES(1,0,3.1,3.0,0.01);
INSERT INTO "real_run_rounds" VALUES(1,1,3.3,3.2,0.02);
CREATE TABLE real_runs (
	id INTEGER NOT NULL, 
	run_key VARCHAR(64) NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	plan_sha256 VARCHAR(64) NOT NULL, 
	status VARCHAR(40) NOT NULL, 
	reason TEXT, 
	clock VARCHAR(40), 
	compute_mode VARCHAR(40), 
	link_mode VARCHAR(40), 
	device_kind VARCHAR(40), 
	median_step_s DOUBLE, 
	spread_share DOUBLE, 
	foreign_load_share DOUBLE, 
	predicted_step_s DOUBLE, 
	replicas_agree BOOLEAN, 
	peak_memory_bytes DOUBLE, 
	stage_peak_memory_bytes_json TEXT, 
	losses_json TEXT, 
	environment_json TEXT, 
	recorded_at_utc DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (run_key), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (id), 
	FOREIGN KEY(plan_sha256) REFERENCES plans (sha256)
);
INSERT INTO "real_runs" VALUES(1,'f355077d3d4576a68b6d1e7011f2e9c7eee0c544c73a5e8407a93a5af42bba77',1,'63c5bb0ec757c069ce68140ad79c5a9af556f449304f37d48b2f1b0397b77648','ok',NULL,'wall','emulated','emulated','cpu',3.2,6.24999999999999167332e-02,0.02,NULL,NULL,NULL,'[]','[]',NULL,'2026-11-30 22:04:15.714281');
CREATE TABLE scores (
	id INTEGER NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	plan_sha256 VARCHAR(64) NOT NULL, 
	objective_value_s DOUBLE, 
	objective_lower_bound_s DOUBLE, 
	predicted_step_s DOUBLE, 
	max_load_s DOUBLE, 
	peak_memory_bytes DOUBLE, 
	missing_bytes DOUBLE, 
	feasible BOOLEAN NOT NULL, 
	reason TEXT, 
	proposed_by VARCHAR(40), 
	island INTEGER, 
	trial_number BIGINT, 
	scored_at_utc DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_scores_experiment_plan UNIQUE (experiment_id, plan_sha256), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (id), 
	FOREIGN KEY(plan_sha256) REFERENCES plans (sha256)
);
INSERT INTO "scores" VALUES(1,1,'63c5bb0ec757c069ce68140ad79c5a9af556f449304f37d48b2f1b0397b77648',3.004,NULL,3.004,NULL,NULL,0.0,1,NULL,NULL,NULL,NULL,'2026-11-30 22:04:15.696970');
CREATE TABLE workloads (
	sha256 VARCHAR(64) NOT NULL, 
	name VARCHAR(200), 
	num_layers INTEGER, 
	workload_json TEXT, 
	PRIMARY KEY (sha256)
);
INSERT INTO "workloads" VALUES('6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514','small',8,'{"cut_bytes_per_sample":[0,400000,400000,400000,400000,400000,400000,400000,0],"layers":[{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.001,0.003]},"gradient_elements":1000000,"name":"layer0","parameter_bytes":4000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.01,0.03]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.005,0.015]},"gradient_elements":5000000,"name":"layer1","parameter_bytes":20000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.004,0.012]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"gradient_elements":2000000,"name":"layer2","parameter_bytes":8000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.004,0.012]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"gradient_elements":2000000,"name":"layer3","parameter_bytes":8000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.014,0.042]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.007,0.021]},"gradient_elements":7000000,"name":"layer4","parameter_bytes":28000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.001,0.003]},"gradient_elements":1000000,"name":"layer5","parameter_bytes":4000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.001,0.003]},"gradient_elements":1000000,"name":"layer6","parameter_bytes":4000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.006,0.018000000000000002]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.003,0.009000000000000001]},"gradient_elements":3000000,"name":"layer7","parameter_bytes":12000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0}],"name":"small","provenance":{"notes":[],"source":"not stated"},"sample":"one sample","schema":"autoplan-workload/1"}');
CREATE INDEX ix_scores_best ON scores (experiment_id, feasible, objective_value_s);
CREATE INDEX ix_real_runs_plan ON real_runs (experiment_id, plan_sha256, status);
CREATE VIEW leaderboard AS
SELECT
    experiments.name AS experiment,
    scores.plan_sha256 AS plan_sha256,
    scores.feasible AS feasible,
    experiments.objective AS objective,
    scores.objective_value_s AS objective_value_s,
    COALESCE(experiments.objective_lower_bound_s, scores.objective_lower_bound_s)
        AS objective_lower_bound_s,
    scores.predicted_step_s AS predicted_step_s,
    real_runs.median_step_s AS measured_step_s,
    real_runs.spread_share AS measured_spread_share,
    real_runs.predicted_step_s AS predicted_step_at_run_s,
    COALESCE(real_runs.predicted_step_s, scores.predicted_step_s)
        / NULLIF(real_runs.median_step_s, 0) - 1 AS prediction_error_share,
    real_runs.clock AS clock,
    real_runs.compute_mode AS compute_mode,
    real_runs.link_mode AS link_mode,
    real_runs.device_kind AS device_kind,
    real_runs.foreign_load_share AS foreign_load_share,
    scores.max_load_s AS predicted_max_load_s,
    scores.peak_memory_bytes AS predicted_peak_memory_bytes,
    real_runs.peak_memory_bytes AS measured_peak_memory_bytes,
    scores.missing_bytes AS missing_bytes,
    scores.reason AS reason,
    plans.num_stages AS num_stages,
    plans.num_devices AS num_devices,
    plans.microbatches AS microbatches,
    plans.schedule AS schedule,
    plans.num_gradient_groups AS num_gradient_groups,
    scores.proposed_by AS proposed_by,
    scores.island AS island,
    scores.trial_number AS trial_number,
    scores.scored_at_utc AS scored_at_utc,
    real_runs.recorded_at_utc AS measured_at_utc
FROM scores
JOIN experiments ON experiments.id = scores.experiment_id
JOIN plans ON plans.sha256 = scores.plan_sha256
LEFT JOIN (
    SELECT experiment_id, plan_sha256, MAX(id) AS latest_id
    FROM real_runs WHERE status = 'ok' GROUP BY experiment_id, plan_sha256
) AS latest
    ON latest.experiment_id = scores.experiment_id AND latest.plan_sha256 = scores.plan_sha256
LEFT JOIN real_runs ON real_runs.id = latest.latest_id;
COMMIT;
