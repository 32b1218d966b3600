from __future__ import annotations

import copy
import hashlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workload.small_files import (
    DAPPLE,
    GOOD,
    LAYER_GRAPH,
    OPERATOR_GRAPH,
    PARAMETERS,
    PIPEDREAM,
    dnn,
    line,
    native,
    node,
    piper,
)

from autoplan import documents
from autoplan.errors import InputError
from autoplan.workload import ReadOptions, Workload, load_workload
from autoplan.workload.readers import READERS, Document
from autoplan.workload.units import TimeTotals, choose_time_unit, imbalance_notes


@pytest.fixture
def load(tmp_path):
    """Writes a file of a name that tells nothing, and loads it."""

    def load_text(content, **options):
        path = tmp_path / "model.data"
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(data)
        return load_workload(path, ReadOptions(**options))

    return load_text


def complaint(load, content, **options):
    """The one line that a bad file earns."""
    with pytest.raises(InputError) as error:
        load(content, **options)
    message = str(error.value)
    assert "model.data" in message
    assert "\n" not in message
    return message


def cuts(workload):
    return dict(
        zip(
            [layer.name for layer in workload.layers],
            workload.cut_bytes_per_sample[1:],
            strict=True,
        )
    )


@pytest.mark.parametrize("name", GOOD)
class TestEveryReader:
    """What holds for all formats."""

    def test_knows_its_own_files_and_no_others(self, name):
        reader, text = GOOD[name]
        document = Document(source="anything", data=text.encode())
        assert [other for other in READERS if other.matches(document)] == [reader]
        assert reader.format

    def test_gives_a_chain_with_finite_costs(self, name, load):
        workload = load(GOOD[name][1])
        assert len(workload.cut_bytes_per_sample) == len(workload.layers) + 1
        assert workload.cut_bytes_per_sample[0] == workload.cut_bytes_per_sample[-1] == 0
        assert sum(layer.forward.seconds[0] for layer in workload.layers) > 0

    def test_is_deterministic(self, name, load):
        assert load(GOOD[name][1]).sha256 == load(GOOD[name][1]).sha256

    def test_its_workload_survives_our_own_format(self, name, load):
        workload = load(GOOD[name][1])
        assert load(documents.pretty_json(workload)) == workload

    def test_names_its_source_without_the_path(self, name, load, tmp_path):
        text = GOOD[name][1]
        workload = load(text)
        assert str(tmp_path) not in str(workload)
        if name != "native":
            provenance = workload.provenance
            assert provenance.source == "model.data"
            assert provenance.source_sha256 == hashlib.sha256(text.encode()).hexdigest()

    def test_divides_sizes_by_a_declared_batch_size(self, name, load):
        text = GOOD[name][1]
        if name == "native":
            assert "batch_size: found 4" in complaint(load, text, batch_size=4)
            return
        whole, parts = load(text), load(text, batch_size=4)
        assert parts.sample == "one sample"
        assert whole.sample != "one sample"
        for one, other in zip(whole.layers, parts.layers, strict=True):
            assert one.forward.seconds == other.forward.seconds
            assert other.forward.samples == (4,)
            assert one.parameter_bytes == other.parameter_bytes
            assert one.stash_bytes_per_sample == 4 * other.stash_bytes_per_sample
        halved = [4 * size for size in parts.cut_bytes_per_sample]
        assert list(whole.cut_bytes_per_sample) == halved

    def test_takes_a_declared_time_unit(self, name, load):
        text = GOOD[name][1]
        if name == "native":
            assert "time_unit: found 'ms'" in complaint(load, text, time_unit="ms")
            return
        in_s, in_us = load(text, time_unit="s"), load(text, time_unit="us")
        for one, other in zip(in_s.layers, in_us.layers, strict=True):
            assert one.backward.seconds[0] == pytest.approx(1e6 * other.backward.seconds[0])

    def test_turns_parameter_bytes_into_elements(self, name, load):
        text = GOOD[name][1]
        if name == "native":
            complaint(load, text, bytes_per_element=2)
            return
        workload = load(text, bytes_per_element=2)
        assert sum(layer.gradient_elements for layer in workload.layers) == PARAMETERS / 2

    def test_refuses_what_is_cut_off_before_its_end(self, name, load):
        reader, text = GOOD[name]
        for end in range(1, len(text) - 1, 7):
            if text.startswith("{"):
                complaint(load, text[:end])
        assert reader.format in complaint(load, "nothing that is known")

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_refuses_or_reads_a_damaged_file(self, name, load, data):
        content = bytearray(GOOD[name][1].encode())
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.sampled_from(b'09-e.,:;[]{}" \t\n\x00\xff='))
        end = data.draw(st.integers(1, len(content)))
        start = data.draw(st.sampled_from([0, 0, 0, end // 2]))
        try:
            assert isinstance(load(bytes(content[start:end])), Workload)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017  either outcome is right

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_refuses_or_reads_json_of_another_shape(self, name, load, data):
        text = GOOD[name][1]
        if not text.startswith("{"):
            return
        holder = document = json.loads(text)
        key = data.draw(st.sampled_from(sorted(holder)))
        while isinstance(holder[key], (dict, list)) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
            key = data.draw(st.sampled_from(list(keys)))
        values = [None, -1, 1e308, 10**400, "", "x", [], {}, True, 0, 0.5, 10**20]
        holder[key] = data.draw(st.sampled_from(values))
        try:
            assert isinstance(load(json.dumps(document)), Workload)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017  either outcome is right


class TestPipeDream:
    def test_drops_inputs_and_joins_selectors(self, load):
        workload = load(PIPEDREAM)
        names = [layer.name for layer in workload.layers]
        assert names == ["node2 LSTM", "node5 Dropout", "node10 Linear"]
        assert [layer.forward.seconds[0] for layer in workload.layers] == [0.1, 0.01, 0.04]
        assert [layer.backward.seconds[0] for layer in workload.layers] == [0.2, 0.01, 0.08]
        assert [layer.stash_bytes_per_sample for layer in workload.layers] == [576, 512, 64]
        assert workload.layers[0].gradient_elements == PARAMETERS / 4
        notes = " ".join(workload.provenance.notes)
        assert "500 of the file's time: node1" in notes
        assert "declare batch_size" in notes

    def test_counts_the_elements_that_are_selected_and_no_others(self, load):
        # Element 2 of the list is read by nobody; element 1 crosses the dropout.
        assert load(PIPEDREAM).cut_bytes_per_sample == (0, 512 + 32, 512 + 32, 0)

    def test_does_not_count_a_list_twice_that_is_also_read_as_a_whole(self, load):
        workload = load(PIPEDREAM + "\n\tnode2 -- node10")
        assert workload.cut_bytes_per_sample == (0, 576, 576 + 512, 0)

    def test_reads_spaces_edges_first_and_stage_numbers(self, load):
        workload = load(DAPPLE.replace("\n", "\r\n"))
        names = ["node1 Embedding", "node2 layer, with [commas]", "node3 Add"]
        assert [layer.name for layer in workload.layers] == names
        assert workload.cut_bytes_per_sample == (0, 256, 128, 0)

    def test_shuffled_lines_give_the_same_model(self, load):
        lines = PIPEDREAM.split("\n")
        one, other = load(PIPEDREAM), load("\n".join(reversed(lines)))
        assert one.layers == other.layers
        assert one.cut_bytes_per_sample == other.cut_bytes_per_sample

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ("forward_compute_time=40.000", "forward_compute_time=-1", "line 1: forward_compute"),
            ("backward_compute_time=80.000", "backward_compute_time=nan", "line 1: backward_comp"),
            ("parameter_size=4000000.000", "parameter_size=1e400", "line 3: parameter_size"),
            ("activation_size=64.0", "activation_size=6_4", "line 1: activation_size: found '6_4'"),
            ("[512.0; 32.0; 32.0]", "[512.0; 32.0; 32.0", "line 3: activation_size"),
            ("[512.0; 32.0; 32.0]", "[]", "line 3: activation_size"),
            ("backward_compute_time=80.000, ", "", "line 1: backward_compute_time: found nothing"),
            ("backward_compute_time=80.000", "speed=80.000", "line 1: found 'speed=80.000'"),
            ("activation_size=64.0", "activation_size=1, activation_size=2", "line 1"),
            ("node10 -- Linear", "node10 Linear", "line 1"),
            ("node10 -- Linear", "node2 -- Linear", "line 3: found 'node2'"),
            ("\tnode1 -- node2", "\tnode1 -- node99", "line 7: found 'node99'"),
            ("\tnode1 -- node2", "\tnode1 node2", "line 7"),
            ("\tnode1 -- node2", "node1 -- node2", "line 7"),
            ("\tnode1 -- node2", "\tnode10 -- node5", "a cycle through"),
            ("\tnode1 -- node2", "\tnode5 -- node5", "a cycle through node5 Dropout"),
            ("\tnode1 -- node2", "\tnode3 -- node3", "a cycle through"),
            ("parameter_size=0.000\n", "parameter_size=0.000 -- stage_id=x\n", "stage_id"),
        ],
    )
    def test_refuses(self, load, old, new, expected):
        assert old in PIPEDREAM
        assert expected in complaint(load, PIPEDREAM.replace(old, new, 1))

    def test_warns_of_a_cut_that_looks_free(self, load):
        workload = load(PIPEDREAM)
        assert not any("0 bytes" in note for note in workload.provenance.notes)
        lines = [line(f"node{i}", "ReLU", 1, 1) for i in (1, 2)]
        workload = load("\n".join([*lines, "\tnode1 -- node2"]))
        assert "0 bytes to what crosses the cuts before node2 ReLU" in workload.provenance.notes[-1]

    def test_refuses_a_model_of_inputs_only(self, load):
        assert "none but Input nodes" in complaint(load, line("node1", "Input", 1.0))


class TestPiper:
    def test_takes_degree_one_without_recompute(self, load):
        workload = load(json.dumps(piper()))
        assert [layer.name for layer in workload.layers] == ["a", "b#1", "b#2"]
        forward = [layer.forward.seconds[0] for layer in workload.layers]
        backward = [layer.backward.seconds[0] for layer in workload.layers]
        assert forward == pytest.approx([0.01, 0.0, 0.02])
        assert backward == pytest.approx([0.02, 0.0, 0.04])
        assert [layer.stash_bytes_per_sample for layer in workload.layers] == [16, 0, 8]

    def test_counts_edges_of_one_source_and_size_once(self, load):
        assert load(json.dumps(piper())).cut_bytes_per_sample == (0, 64, 64 + 32, 0)

    @pytest.mark.parametrize(("recompute", "forward"), [(0.02, 0.0), (0.09, 0.03)])
    def test_keeps_the_forward_time_within_the_whole(self, load, recompute, forward):
        document = piper()
        document["nodes"][0]["TMPCs"]["1"][0]["timePerSample"] = recompute
        first = load(json.dumps(document)).layers[0]
        assert first.forward.seconds[0] == forward
        assert first.forward.seconds[0] + first.backward.seconds[0] == pytest.approx(0.03)

    def test_finds_the_unit_that_the_publisher_got_wrong(self, load):
        workload = load(json.dumps(piper(unit_s=1e-3)))
        assert workload.layers[0].backward.seconds[0] == pytest.approx(0.02)
        assert any(note.startswith("warning:") for note in workload.provenance.notes)

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda d: d["nodes"][1].update(id=0), "nodes[1].id: found 0"),
            (lambda d: d["nodes"][1].update(name=" "), "nodes[1].name"),
            (lambda d: d["nodes"][1].update(colour=1), "nodes[1].colour: found an unknown field"),
            (lambda d: d["nodes"][1].pop("name"), "nodes[1].name: found nothing"),
            (lambda d: d["nodes"][1].update(TMPCs={"2": []}), "nodes[1].TMPCs"),
            (lambda d: d["nodes"][1].update(TMPCs={"1": []}), "nodes[1].TMPCs.1"),
            (
                lambda d: d["nodes"][0]["TMPCs"]["1"][1].update(timePerSample=-1),
                "nodes[0].TMPCs.1[1].timePerSample",
            ),
            (lambda d: d["edges"][0].update(sourceId=7), "edges[0].sourceId: found 7"),
            (lambda d: d["edges"][0].update(destId=0), "edges[0]"),
            (lambda d: d["edges"][0].update(sourceId=2, destId=0), "a cycle through a, b#2"),
            (lambda d: d["edges"][0].update(communicationCost=1e400), "broken JSON"),
            (lambda d: d.update(nodes=[]), "nodes: found nothing"),
            (lambda d: d.update(bandwidth="fast"), "bandwidth: found 'fast'"),
            (lambda d: d.update(speed=1), "speed: found an unknown field"),
        ],
    )
    def test_refuses(self, load, change, expected):
        document = piper()
        change(document)
        assert expected in complaint(load, json.dumps(document))


class TestDnnPartitioning:
    def test_joins_backward_siblings_and_divides_sizes(self, load):
        workload = load(json.dumps(LAYER_GRAPH))
        assert [layer.name for layer in workload.layers] == ["n1", "n2", "n3"]
        assert [layer.forward.seconds[0] for layer in workload.layers] == [0.01, 0.02, 0.005]
        assert [layer.backward.seconds[0] for layer in workload.layers] == [0.03, 0.04, 0.01]
        assert [layer.parameter_bytes for layer in workload.layers] == [PARAMETERS, 0, 0]
        assert [layer.stash_bytes_per_sample for layer in workload.layers] == [64, 32, 16]
        assert workload.cut_bytes_per_sample == (0, 64, 96, 0)

    def test_fuses_classes_that_lie_on_a_cycle_and_keeps_lonely_losses(self, load):
        workload = load(json.dumps(OPERATOR_GRAPH))
        assert [layer.name for layer in workload.layers] == ["n2 +3", "n4", "n10"]
        fused, _, loss = workload.layers
        assert fused.parameter_bytes == PARAMETERS
        assert fused.stash_bytes_per_sample == 64 + 32 + 16
        assert fused.forward.seconds[0] == pytest.approx(0.035)
        assert fused.backward.seconds[0] == pytest.approx(0.030)
        assert loss.forward.seconds[0] == 0
        assert loss.backward.seconds[0] == pytest.approx(0.002)
        # The loss's gradient goes back to the first layer, which therefore lies before it.
        assert workload.cut_bytes_per_sample == (0, 16 + 16, 16 + 8, 0)

    @pytest.mark.parametrize(("bytes_per_cost", "unit"), [(1e7, "are ms"), (2e9, "must be s")])
    def test_tells_the_unit_of_edge_costs(self, load, bytes_per_cost, unit):
        document = copy.deepcopy(LAYER_GRAPH)
        for edge in document["edges"]:
            edge["cost"] = edge["size"] / bytes_per_cost
        workload = load(json.dumps(document))
        assert unit in " ".join(workload.provenance.notes)
        assert workload.cut_bytes_per_sample == (0, 64, 96, 0)

    def test_takes_inference_files_and_nodes_for_the_cpu(self, load):
        nodes = [node(1, 10.0, PARAMETERS + 4.0), node(2, 1.0, 4.0) | {"supportedOnFpga": False}]
        workload = load(json.dumps(dnn(nodes, [(1, 2, 4.0)])))
        assert [layer.forward.seconds[0] for layer in workload.layers] == [0.01, 0.01]
        assert [layer.backward.seconds[0] for layer in workload.layers] == [0, 0]
        notes = " ".join(workload.provenance.notes)
        assert "no backward nodes" in notes
        assert "1 nodes cannot run on the accelerator" in notes

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda d: d["nodes"][1].update(id=1), "nodes[1].id: found 1"),
            (lambda d: d["nodes"][1].update(name=""), "nodes[1].name"),
            (lambda d: d["nodes"][1].update(isBackwardNode=2), "nodes[1].isBackwardNode: found 2"),
            (lambda d: d["nodes"][1].update(fpgaLatency=-0.5), "nodes[1].fpgaLatency: found -0.5"),
            (lambda d: d["nodes"][1].update(colour=1), "nodes[1].colour: found an unknown field"),
            (lambda d: d["nodes"][1].pop("size"), "nodes[1].size: found nothing"),
            (lambda d: d["edges"][0].update(destId=99), "edges[0].destId: found 99"),
            (lambda d: d["edges"][0].update(size=float("nan")), "broken JSON"),
            (lambda d: d["edges"][2].update(sourceId=3, destId=1), "a cycle through n1 (id 1), n3"),
            (lambda d: d["edges"][2].update(sourceId=13), "edges[2]: found an edge from backward"),
            (lambda d: d.update(nodes=[]), "nodes: found nothing"),
            (lambda d: d.update(maxGPUs=1), "maxGPUs: found an unknown field"),
        ],
    )
    def test_refuses(self, load, change, expected):
        document = copy.deepcopy(LAYER_GRAPH)
        change(document)
        assert expected in complaint(load, json.dumps(document))


class TestNative:
    def test_reads_what_was_written(self, load):
        assert load(documents.pretty_json(native())) == native()
        assert load(documents.canonical_json(native())) == native()

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda d: d.update(schema="autoplan-workload/9"), "schema"),
            (lambda d: d.update(layers=[]), "layers"),
            (lambda d: d["layers"][1].pop("forward"), "layers[1].forward: found nothing"),
            (lambda d: d["layers"][1].update(speed=1), "layers[1].speed: found an unknown field"),
            (lambda d: d["layers"][1].update(parameter_bytes=-1), "layers[1].parameter_bytes"),
            (lambda d: d["layers"][1].update(gradient_elements=10**400), "layers"),
            (lambda d: d["cut_bytes_per_sample"].pop(), "cut_bytes_per_sample: found 2"),
        ],
    )
    def test_refuses(self, load, change, expected):
        document = documents.plain(native())
        change(document)
        assert expected in complaint(load, json.dumps(document))


@pytest.mark.parametrize(
    "content",
    [b"", b" \n\t", b"\x89PNG\r\n\x1a\n\x00\x00", b"\xff\xfe{", b"[]", b"{}", b"null", b"[" * 9999],
)
def test_what_is_no_workload_is_refused(load, content):
    complaint(load, content)


def test_an_unknown_format_is_told_what_is_known(load):
    message = complaint(load, '{"layers": 3}')
    assert all(reader.format in message for reader in READERS)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError):
        load_workload(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"time_unit": "min"}, {"bytes_per_element": 0}]
)
def test_options_are_checked(options):
    with pytest.raises(InputError):
        ReadOptions(**options)


class TestUnits:
    LARGE = TimeTotals(time=520.0, parameter_elements=278e6, num_layers=78)

    @pytest.mark.parametrize(
        ("time", "documented", "unit"),
        [
            (0.52, "s", "s"),
            (520.0, "s", "ms"),
            (520.0, "ms", "ms"),
            (520e3, "s", "us"),
            (1e-6, "us", "s"),
        ],
    )
    def test_an_implausible_unit_gives_way_to_the_nearest(self, time, documented, unit):
        totals = TimeTotals(time=time, parameter_elements=278e6, num_layers=78)
        chosen, notes = choose_time_unit(totals, documented, None)
        assert chosen == unit
        assert notes[0].startswith("warning:") == (unit != documented)

    @pytest.mark.parametrize("time", [1e-9, 1e12])
    def test_times_of_no_plausible_unit_are_refused(self, time):
        totals = TimeTotals(time=time, parameter_elements=278e6, num_layers=78)
        with pytest.raises(InputError, match="declare time_unit"):
            choose_time_unit(totals, "ms", None)

    def test_a_declared_unit_always_wins(self):
        assert choose_time_unit(self.LARGE, "ms", "s")[0] == "s"
        assert choose_time_unit(self.LARGE, "ms", "s")[1][0].startswith("warning:")
        assert not choose_time_unit(self.LARGE, "s", "ms")[1][0].startswith("warning:")

    @pytest.mark.parametrize(("time", "parameters"), [(0.0, 1e9), (1e9, 0.0)])
    def test_what_cannot_be_judged_keeps_the_documented_unit(self, time, parameters):
        totals = TimeTotals(time=time, parameter_elements=parameters, num_layers=1)
        assert choose_time_unit(totals, "ms", None)[0] == "ms"

    def test_a_small_model_may_be_all_overhead(self):
        totals = TimeTotals(time=20.0, parameter_elements=100, num_layers=3)
        assert choose_time_unit(totals, "ms", None)[0] == "ms"

    @pytest.mark.parametrize(
        ("compute_s", "sent_bytes", "bytes_per_s", "warns"),
        [
            (1.0, 1e9, 1e9, False),
            (1.0, 1e9, 1e5, True),
            (1e4, 1e9, 1e9, True),
            (1.0, 1e13, None, False),
            (1.0, 1e15, None, True),
            (1.0, 1e6, None, False),
            (1.0, 1e5, None, True),
            (0.0, 1e9, None, False),
            (1.0, 0.0, 1e9, False),
        ],
    )
    def test_communication_far_from_compute_is_flagged(
        self, compute_s, sent_bytes, bytes_per_s, warns
    ):
        notes = imbalance_notes(compute_s, sent_bytes, bytes_per_s)
        assert bool(notes) == warns
        assert all(note.startswith("warning:") for note in notes)
