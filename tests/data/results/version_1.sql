BEGIN TRANSACTION;
CREATE TABLE autoplan_schema (
	id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	written_by VARCHAR(40) NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "autoplan_schema" VALUES(1,1,'autoplan 0.1.0');
CREATE TABLE clusters (
	sha256 VARCHAR(64) NOT NULL, 
	name VARCHAR(200), 
	num_devices INTEGER, 
	cluster_json TEXT, 
	PRIMARY KEY (sha256)
);
INSERT INTO "clusters" VALUES('88c8ddc2b5b4aa2743c0c703e042a4294e35d52fe6ef0cfcb28ce7b601136c48','two by two',4,'{"all_reduce":"auto","device":{"memory_bandwidth_bytes_per_s":100000000000,"memory_bytes":1000000000,"name":"device"},"devices_per_node":2,"inter_node":{"alpha_s":5e-05,"bandwidth_bytes_per_s":1200000000,"name":"10 Gb/s Ethernet, TCP","source":"9.43 Gb/s by iperf and ring slopes within 2-4 % of line rate (facts/mgs.md sections 2, 3.1)"},"intra_node":{"alpha_s":8e-06,"bandwidth_bytes_per_s":10000000000,"name":"PCIe 3.0 x16","source":"15.75 GB/s raw; 10 GB/s is the effective slope .23-.37 ns/B of ddl-benchmarks'' one-node runs; 8 us: llm-analysis"},"measured":[],"name":"two by two","nics_per_node":1,"nodes":2,"schema":"autoplan-cluster/1"}');
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
INSERT INTO "experiments" VALUES(1,'small','6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514','88c8ddc2b5b4aa2743c0c703e042a4294e35d52fe6ef0cfcb28ce7b601136c48','step_time','{"cluster":"88c8ddc2b5b4aa2743c0c703e042a4294e35d52fe6ef0cfcb28ce7b601136c48","job":"5ff45bd71fa35ea1f94c9dd34945c1fb7c83f86b530ca53fed6b69ea2342884f","objective":"step_time","space":"931131431e1ece809223786cd634b4ff0f56d429a9239f5e6da80f7ec2e88184","workload":"6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514"}',0,'{"budget":{"exhaustive_plans":0,"seconds":60,"seed":0,"trials":30},"job":{"global_batch":16,"memory_headroom":0.1,"optimizer":"momentum","precision":"float32"},"space":{"cap_bytes":[26214400],"cut_shift":3,"cuts":"open","densities":[1],"equal_replicas":false,"group_min_elements":0,"grouping":["exact"],"microbatches":[],"rank_orders":["replica","stage"],"recompute":["never","where-needed"],"replicas":[],"schedules":["1f1b","gpipe"],"schema":"autoplan-space/1","stages":[]}}','{"cores":2,"packages":{"autoplan":"0.1.0","numba":"0.68.1","numpy":"2.4.6","optuna":"5.0.0","ray":"2.60.0","sqlalchemy":"2.1.9"},"platform":"Linux","processor":"x86_64","python":"3.11.7"}','2026-11-30 18:59:02.277006','2026-11-30 18:59:02.336429','trials',2,NULL,NULL,2.5);
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
INSERT INTO "plans" VALUES('e26755ec7c221abeb23d955d8425b58f08f75fc463e89ae376b576b41e44038d',2,2,4,'1f1b',0,'{"microbatches":4,"rank_order":"replica","schedule":"1f1b","schema":"autoplan-plan/1","stages":[{"groups":[{"density":1,"layers":[0,4]}],"layers":[0,4],"recompute":false,"replicas":1},{"groups":[{"density":1,"layers":[4,8]}],"layers":[4,8],"recompute":false,"replicas":1}]}');
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
INSERT INTO "scores" VALUES(1,1,'63c5bb0ec757c069ce68140ad79c5a9af556f449304f37d48b2f1b0397b77648',3.004,NULL,3.004,NULL,NULL,0.0,1,NULL,NULL,NULL,NULL,'2026-11-30 18:59:02.324034');
INSERT INTO "scores" VALUES(2,1,'e26755ec7c221abeb23d955d8425b58f08f75fc463e89ae376b576b41e44038d',4.004,NULL,4.004,NULL,NULL,1000000.0,0,'it lacks 1e+06 bytes on its fullest stage',NULL,NULL,NULL,'2026-11-30 18:59:02.324034');
CREATE TABLE workloads (
	sha256 VARCHAR(64) NOT NULL, 
	name VARCHAR(200), 
	num_layers INTEGER, 
	workload_json TEXT, 
	PRIMARY KEY (sha256)
);
INSERT INTO "workloads" VALUES('6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514','small',8,'{"cut_bytes_per_sample":[0,400000,400000,400000,400000,400000,400000,400000,0],"layers":[{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.001,0.003]},"gradient_elements":1000000,"name":"layer0","parameter_bytes":4000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.01,0.03]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.005,0.015]},"gradient_elements":5000000,"name":"layer1","parameter_bytes":20000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.004,0.012]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"gradient_elements":2000000,"name":"layer2","parameter_bytes":8000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.004,0.012]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"gradient_elements":2000000,"name":"layer3","parameter_bytes":8000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.014,0.042]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.007,0.021]},"gradient_elements":7000000,"name":"layer4","parameter_bytes":28000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.001,0.003]},"gradient_elements":1000000,"name":"layer5","parameter_bytes":4000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.002,0.006]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.001,0.003]},"gradient_elements":1000000,"name":"layer6","parameter_bytes":4000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0},{"backward":{"overhead_s":0,"samples":[1,4],"seconds":[0.006,0.018000000000000002]},"forward":{"overhead_s":0,"samples":[1,4],"seconds":[0.003,0.009000000000000001]},"gradient_elements":3000000,"name":"layer7","parameter_bytes":12000000,"stash_bytes_per_sample":1000000,"workspace_bytes_per_sample":0}],"name":"small","provenance":{"notes":[],"source":"not stated"},"sample":"one sample","schema":"autoplan-workload/1"}');
CREATE INDEX ix_scores_best ON scores (experiment_id, feasible, objective_value_s);
COMMIT;
