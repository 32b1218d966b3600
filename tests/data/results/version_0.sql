BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'small');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'autoplan:identity','{"workload": "6e87056047d2526a1e0d39aac3cc339d76e56c1dad360db69fac70c4d99a3514", "cluster": "88c8ddc2b5b4aa2743c0c703e042a4294e35d52fe6ef0cfcb28ce7b601136c48", "job": "5ff45bd71fa35ea1f94c9dd34945c1fb7c83f86b530ca53fed6b69ea2342884f", "space": "931131431e1ece809223786cd634b4ff0f56d429a9239f5e6da80f7ec2e88184"}');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,2,'base',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["compute", "communication", "uniform", "bound"]}}');
INSERT INTO "trial_params" VALUES(2,2,'microbatches_index',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 4}}');
INSERT INTO "trial_params" VALUES(3,2,'stages_index',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(4,2,'replica_steps_down',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(5,2,'replica_shift_0',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(6,2,'replica_shift_1',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(7,2,'cut_shift_1',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -3, "high": 3}}');
INSERT INTO "trial_params" VALUES(8,2,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["1f1b", "gpipe"]}}');
INSERT INTO "trial_params" VALUES(9,2,'rank_order',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["replica", "stage"]}}');
INSERT INTO "trial_params" VALUES(10,2,'recompute',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["never", "where-needed"]}}');
INSERT INTO "trial_params" VALUES(11,3,'base',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["compute", "communication", "uniform", "bound"]}}');
INSERT INTO "trial_params" VALUES(12,3,'microbatches_index',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 4}}');
INSERT INTO "trial_params" VALUES(13,3,'stages_index',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(14,3,'replica_steps_down',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(15,3,'replica_shift_0',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(16,3,'replica_shift_1',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(17,3,'cut_shift_1',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -3, "high": 3}}');
INSERT INTO "trial_params" VALUES(18,3,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["1f1b", "gpipe"]}}');
INSERT INTO "trial_params" VALUES(19,3,'rank_order',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["replica", "stage"]}}');
INSERT INTO "trial_params" VALUES(20,3,'recompute',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["never", "where-needed"]}}');
INSERT INTO "trial_params" VALUES(21,4,'base',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["compute", "communication", "uniform", "bound"]}}');
INSERT INTO "trial_params" VALUES(22,4,'microbatches_index',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 4}}');
INSERT INTO "trial_params" VALUES(23,4,'stages_index',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(24,4,'replica_steps_down',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(25,4,'replica_shift_0',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(26,4,'replica_shift_1',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(27,4,'cut_shift_1',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -3, "high": 3}}');
INSERT INTO "trial_params" VALUES(28,4,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["1f1b", "gpipe"]}}');
INSERT INTO "trial_params" VALUES(29,4,'rank_order',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["replica", "stage"]}}');
INSERT INTO "trial_params" VALUES(30,4,'recompute',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["never", "where-needed"]}}');
INSERT INTO "trial_params" VALUES(31,5,'base',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["compute", "communication", "uniform", "bound"]}}');
INSERT INTO "trial_params" VALUES(32,5,'microbatches_index',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 4}}');
INSERT INTO "trial_params" VALUES(33,5,'stages_index',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(34,5,'replica_steps_down',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(35,5,'replica_shift_0',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": -1, "high": 1}}');
INSERT INTO "trial_params" VALUES(36,5,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["1f1b", "gpipe"]}}');
INSERT INTO "trial_params" VALUES(37,5,'rank_order',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["replica", "stage"]}}');
INSERT INTO "trial_params" VALUES(38,5,'recompute',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["never", "where-needed"]}}');
INSERT INTO "trial_params" VALUES(39,6,'base',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["compute", "communication", "uniform", "bound"]}}');
INSERT INTO "trial_params" VALUES(40,6,'microbatches_index',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 4}}');
INSERT INTO "trial_params" VALUES(41,6,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["1f1b", "gpipe"]}}');
INSERT INTO "trial_params" VALUES(42,6,'rank_order',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["replica", "stage"]}}');
INSERT INTO "trial_params" VALUES(43,6,'recompute',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["never", "where-needed"]}}');
INSERT INTO "trial_params" VALUES(44,7,'base',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["compute", "communication", "uniform", "bound"]}}');
INSERT INTO "trial_params" VALUES(45,7,'microbatches_index',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 4}}');
INSERT INTO "trial_params" VALUES(46,7,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["1f1b", "gpipe"]}}');
INSERT INTO "trial_params" VALUES(47,7,'rank_order',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["replica", "stage"]}}');
INSERT INTO "trial_params" VALUES(48,7,'recompute',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["never", "where-needed"]}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(2,1,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(3,2,'fixed_params','{"cut_shift_1": 0, "cut_shift_2": 0, "cut_shift_3": 0, "replica_shift_0": 0, "replica_shift_1": 0, "replica_shift_2": 0, "replica_shift_3": 0, "replica_steps_down": 0, "recompute": "where-needed", "schedule": "1f1b", "grouping": "exact", "base": "uniform", "microbatches_index": 2, "stages_index": 1, "rank_order": "replica"}');
INSERT INTO "trial_system_attributes" VALUES(4,2,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(5,2,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(6,3,'fixed_params','{"cut_shift_1": 0, "cut_shift_2": 0, "cut_shift_3": 0, "replica_shift_0": 0, "replica_shift_1": 0, "replica_shift_2": 0, "replica_shift_3": 0, "replica_steps_down": 0, "recompute": "where-needed", "schedule": "1f1b", "grouping": "exact", "base": "compute", "microbatches_index": 2, "stages_index": 1, "rank_order": "replica"}');
INSERT INTO "trial_system_attributes" VALUES(7,3,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(8,3,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(9,4,'fixed_params','{"cut_shift_1": 0, "cut_shift_2": 0, "cut_shift_3": 0, "replica_shift_0": 0, "replica_shift_1": 0, "replica_shift_2": 0, "replica_shift_3": 0, "replica_steps_down": 0, "recompute": "where-needed", "schedule": "1f1b", "grouping": "exact", "base": "communication", "microbatches_index": 2, "stages_index": 1, "rank_order": "replica"}');
INSERT INTO "trial_system_attributes" VALUES(10,4,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(11,4,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(12,5,'fixed_params','{"cut_shift_1": 0, "cut_shift_2": 0, "cut_shift_3": 0, "replica_shift_0": 0, "replica_shift_1": 0, "replica_shift_2": 0, "replica_shift_3": 0, "replica_steps_down": 0, "recompute": "where-needed", "schedule": "1f1b", "grouping": "exact", "base": "uniform", "microbatches_index": 0, "stages_index": 0, "rank_order": "replica"}');
INSERT INTO "trial_system_attributes" VALUES(13,5,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(14,5,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(15,6,'fixed_params','{"cut_shift_1": 0, "cut_shift_2": 0, "cut_shift_3": 0, "replica_shift_0": 0, "replica_shift_1": 0, "replica_shift_2": 0, "replica_shift_3": 0, "replica_steps_down": 0, "recompute": "where-needed", "schedule": "1f1b", "grouping": "exact", "base": "bound", "microbatches_index": 0, "rank_order": "replica"}');
INSERT INTO "trial_system_attributes" VALUES(16,6,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(17,6,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(18,7,'fixed_params','{"cut_shift_1": 0, "cut_shift_2": 0, "cut_shift_3": 0, "replica_shift_0": 0, "replica_shift_1": 0, "replica_shift_2": 0, "replica_shift_3": 0, "replica_steps_down": 0, "recompute": "where-needed", "schedule": "1f1b", "grouping": "exact", "base": "bound", "microbatches_index": 0, "rank_order": "stage"}');
INSERT INTO "trial_system_attributes" VALUES(19,7,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(20,7,'constraints:breaks_limits','0.0');
INSERT INTO "trial_system_attributes" VALUES(21,8,'constraints:missing_bytes','0.0');
INSERT INTO "trial_system_attributes" VALUES(22,8,'constraints:breaks_limits','0.0');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'proposed_by','"sweep"');
INSERT INTO "trial_user_attributes" VALUES(2,1,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 8], "replicas": 4, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}, {"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(3,1,'layout','{"bounds": [0, 8], "replicas": [4], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(4,2,'proposed_by','"uniform-layers"');
INSERT INTO "trial_user_attributes" VALUES(5,2,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 4], "replicas": 2, "recompute": false, "groups": [{"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}, {"layers": [4, 8], "replicas": 2, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}]}], "microbatches": 4, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(6,2,'layout','{"bounds": [0, 4, 8], "replicas": [2, 2], "microbatches": 4, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(7,3,'proposed_by','"balanced-compute"');
INSERT INTO "trial_user_attributes" VALUES(8,3,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 4], "replicas": 2, "recompute": false, "groups": [{"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}, {"layers": [4, 8], "replicas": 2, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}]}], "microbatches": 4, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(9,3,'layout','{"bounds": [0, 4, 8], "replicas": [2, 2], "microbatches": 4, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(10,4,'proposed_by','"balanced-communication"');
INSERT INTO "trial_user_attributes" VALUES(11,4,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 4], "replicas": 2, "recompute": false, "groups": [{"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}, {"layers": [4, 8], "replicas": 2, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}]}], "microbatches": 4, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(12,4,'layout','{"bounds": [0, 4, 8], "replicas": [2, 2], "microbatches": 4, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(13,5,'proposed_by','"data-parallel"');
INSERT INTO "trial_user_attributes" VALUES(14,5,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 8], "replicas": 4, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}, {"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(15,5,'layout','{"bounds": [0, 8], "replicas": [4], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(16,6,'proposed_by','"bound-1-microbatches"');
INSERT INTO "trial_user_attributes" VALUES(17,6,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 8], "replicas": 4, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}, {"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(18,6,'layout','{"bounds": [0, 8], "replicas": [4], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(19,7,'proposed_by','"bound-1-microbatches"');
INSERT INTO "trial_user_attributes" VALUES(20,7,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 8], "replicas": 4, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}, {"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}], "microbatches": 1, "schedule": "1f1b", "rank_order": "stage"}');
INSERT INTO "trial_user_attributes" VALUES(21,7,'layout','{"bounds": [0, 8], "replicas": [4], "microbatches": 1, "schedule": "1f1b", "rank_order": "stage", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
INSERT INTO "trial_user_attributes" VALUES(22,8,'proposed_by','"polish"');
INSERT INTO "trial_user_attributes" VALUES(23,8,'plan','{"schema": "autoplan-plan/1", "stages": [{"layers": [0, 8], "replicas": 4, "recompute": false, "groups": [{"layers": [5, 8], "density": 1.0}, {"layers": [4, 5], "density": 1.0}, {"layers": [2, 4], "density": 1.0}, {"layers": [1, 2], "density": 1.0}, {"layers": [0, 1], "density": 1.0}]}], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica"}');
INSERT INTO "trial_user_attributes" VALUES(24,8,'layout','{"bounds": [0, 8], "replicas": [4], "microbatches": 1, "schedule": "1f1b", "rank_order": "replica", "recompute": "where-needed", "policy": "exact", "cap_bytes": 26214400.0}');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,0.219032,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,2.9518266666666670428e-01,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,2.9518266666666670428e-01,'FINITE');
INSERT INTO "trial_values" VALUES(4,4,0,2.9518266666666670428e-01,'FINITE');
INSERT INTO "trial_values" VALUES(5,5,0,0.219032,'FINITE');
INSERT INTO "trial_values" VALUES(6,6,0,0.219032,'FINITE');
INSERT INTO "trial_values" VALUES(7,7,0,0.219032,'FINITE');
INSERT INTO "trial_values" VALUES(8,8,0,0.219032,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-30 18:30:19.059182','2026-11-30 18:30:19.059182');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-30 18:30:19.059317','2026-11-30 18:30:19.063110');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-30 18:30:19.063382','2026-11-30 18:30:19.064379');
INSERT INTO "trials" VALUES(4,3,1,'COMPLETE','2026-11-30 18:30:19.064582','2026-11-30 18:30:19.065487');
INSERT INTO "trials" VALUES(5,4,1,'COMPLETE','2026-11-30 18:30:19.065677','2026-11-30 18:30:19.066617');
INSERT INTO "trials" VALUES(6,5,1,'COMPLETE','2026-11-30 18:30:19.066789','2026-11-30 18:30:19.067253');
INSERT INTO "trials" VALUES(7,6,1,'COMPLETE','2026-11-30 18:30:19.067393','2026-11-30 18:30:19.067906');
INSERT INTO "trials" VALUES(8,7,1,'COMPLETE','2026-11-30 18:30:19.068357','2026-11-30 18:30:19.068357');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
