"""autoplan: plan distributed training, predict it, search for the best, prove it by running."""

from autoplan import gradsync, pipeline, search
from autoplan.cluster import Cluster, Device, Link, load_cluster
from autoplan.job import Job
from autoplan.plan import GradientGroup, Plan, Stage, load_plan
from autoplan.predict import predict
from autoplan.prediction import Prediction
from autoplan.search.experiment import Experiment, load_experiment
from autoplan.workload import CostCurve, Layer, Workload, load_workload

__all__ = [
    "Cluster",
    "CostCurve",
    "Device",
    "Experiment",
    "GradientGroup",
    "Job",
    "Layer",
    "Link",
    "Plan",
    "Prediction",
    "Stage",
    "Workload",
    "gradsync",
    "load_cluster",
    "load_experiment",
    "load_plan",
    "load_workload",
    "pipeline",
    "predict",
    "search",
]
