"""autoplan predict EXPERIMENT --plan PLAN."""

from __future__ import annotations

import argparse

from autoplan.cli.arguments import add_calibration_option


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "predict",
        help="predict one plan",
        description="Predicts the step time and the memory of one plan.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT.toml", help="what it is a plan for")
    parser.add_argument("--plan", required=True, metavar="PLAN.json", help="the plan")
    add_calibration_option(parser)
    parser.add_argument("--trace", metavar="OUT.json", help="write the timeline for Perfetto")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predicts and prints; 0, or 1 where the plan does not fit the devices."""
    import json

    from autoplan.documents import pretty_json, write_atomic
    from autoplan.errors import InputError
    from autoplan.plan import load_plan
    from autoplan.predict import Predictor
    from autoplan.report.trace import chrome_trace
    from autoplan.search.experiment import load_experiment

    experiment = load_experiment(arguments.experiment, arguments.calibration)
    plan = load_plan(arguments.plan)
    predictor = Predictor(
        experiment.workload, experiment.cluster, experiment.job, experiment.domain()
    )
    try:
        prediction = predictor.predict(plan)
    except InputError as error:
        raise error.inside(arguments.plan) from None
    if arguments.trace:
        trace = chrome_trace(plan, *predictor.timeline(plan))
        write_atomic(arguments.trace, json.dumps(trace, allow_nan=False))
    if arguments.json:
        document = {"plan": plan, "prediction": prediction.to_document()}
        print(pretty_json(document), end="")
    else:
        from autoplan.report.console import console
        from autoplan.report.tables import show_prediction

        show_prediction(plan, prediction, console())
    return 0 if prediction.feasible else 1
