from __future__ import annotations

import json
import os
import resource
import signal
import time
from contextlib import contextmanager

import pytest
from builders import layer, workload

from autoplan import Job, Workload
from autoplan.documents import (
    MAX_BYTES,
    build,
    build_json,
    canonical_json,
    identity,
    json_value,
    plain,
    pretty_json,
    read_bytes,
    toml_value,
    write_atomic,
)
from autoplan.errors import InputError

MODEL = workload([layer(name="Ä", gradient_elements=3), layer(name="b")], (1.0, 2.5, 3.0))


def document():
    return plain(MODEL)


@contextmanager
def files_of_at_most(size):
    """Writes beyond `size` bytes fail, as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def broken(path, value):
    """The model's document with one value replaced; Ellipsis removes it."""
    tree = document()
    spot = tree
    for key in path[:-1]:
        spot = spot[key]
    if value is ...:
        del spot[path[-1]]
    else:
        spot[path[-1]] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "field", "found"),
    [
        (["name"], 3, "name", "found 3"),
        (["name"], ..., "name", "found nothing"),
        (["layers"], {}, "layers", "found {}"),
        (["layers", 1, "name"], None, "layers[1].name", "found None"),
        (["layers", 0, "forward", "seconds", 0], "1", "layers[0].forward.seconds[0]", "'1'"),
        (["layers", 0, "forward", "seconds"], ..., "layers[0].forward.seconds", "nothing"),
        (["layers", 0, "forward", "sceonds"], [1], "layers[0].forward.sceonds", "unknown field"),
        (["layers", 1, "gradient_elements"], True, "layers[1].gradient_elements", "found True"),
        (["layers", 1, "gradient_elements"], 2.0, "layers[1].gradient_elements", "found 2.0"),
        (["layers", 1, "parameter_bytes"], True, "layers[1].parameter_bytes", "found True"),
        (["layers", 1, "parameter_bytes"], -1, "layers[1].parameter_bytes", "found -1"),
        (["layers", 0, "forward", "samples", 0], 0, "layers[0].forward.samples", "found (0.0,)"),
        (["cut_bytes_per_sample", 2], -1, "cut_bytes_per_sample[2]", "found -1"),
        (["schema"], "autoplan-workload/9", "schema", "autoplan-workload/9"),
        (["colour"], "red", "colour", "unknown field"),
    ],
)
def test_strict_parsing_names_the_file_and_the_path_of_the_field(path, value, field, found):
    with pytest.raises(InputError) as caught:
        build(Workload, broken(path, value), "w.json")
    message = str(caught.value)
    assert message.startswith(f"w.json: {field}: ")
    assert found in message
    assert "\n" not in message


def test_unknown_field_error_lists_the_known_ones_of_its_place():
    with pytest.raises(InputError, match=r"allowed: samples, seconds, overhead_s, spread_s$"):
        build(Workload, broken(["layers", 0, "backward", "x"], 1), "w.json")


def test_prefix_leads_the_path():
    with pytest.raises(InputError, match=r"^e\.toml: job\.global_batch: found 'x'"):
        build(Job, {"global_batch": "x"}, "e.toml", "job")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_json_numbers_that_are_not_finite_are_refused(number):
    text = f'{{"global_batch": 8, "memory_headroom": {number}}}'.encode()
    with pytest.raises(InputError, match="memory_headroom"):
        build_json(Job, text, "j")
    if number != "1e999":
        with pytest.raises(InputError, match="broken JSON"):
            json_value(text, "j")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_toml_numbers_that_are_not_finite_are_refused(tmp_path, number):
    file = tmp_path / "j.toml"
    file.write_text(f"global_batch = 8\nmemory_headroom = {number}\n")
    with pytest.raises(InputError, match="memory_headroom"):
        build(Job, toml_value(file), str(file))


@pytest.mark.parametrize("data", [b"null", b"[]", b"3", b'"text"', b"[" * 100_000, b'{"a":1} x'])
def test_json_of_the_wrong_shape_is_refused(data):
    with pytest.raises(InputError):
        build_json(Workload, data, "w.json")


def test_json_cut_off_anywhere_is_an_input_error():
    data = pretty_json(MODEL).strip().encode()
    assert build_json(Workload, data, "w") == MODEL
    for end in range(len(data)):
        with pytest.raises(InputError):
            build_json(Workload, data[:end], "w")
        with pytest.raises(InputError):
            json_value(data[:end], "w")


@pytest.mark.parametrize(
    "text", ["a = ", "a = 1\na = 2", "[a", "x = " + "[" * 100_000, "a = 'b", "= 1"]
)
def test_broken_toml_is_an_input_error(tmp_path, text):
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(InputError, match="broken TOML"):
        toml_value(file)


def test_toml_number_with_thousands_of_digits_is_an_input_error(tmp_path):
    file = tmp_path / "long.toml"
    file.write_text("a = " + "1" * 5000)
    with pytest.raises(InputError):
        toml_value(file)


def test_whole_number_beyond_any_float_is_an_input_error():
    with pytest.raises(InputError, match="gradient_elements"):
        build(Workload, broken(["layers", 0, "gradient_elements"], 10**400), "w.json")


def test_file_beyond_the_size_cap_is_refused_unread(tmp_path):
    file = tmp_path / "huge.json"
    with open(file, "wb") as stream:
        stream.truncate(2 * 2**30)
    start = time.perf_counter()
    with pytest.raises(InputError, match=f"found {2 * 2**30} bytes; allowed: at most {MAX_BYTES}"):
        read_bytes(file)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b" \n\t ", "an empty file"),
        (b'{"global_batch": "\xff"}', "byte 0xff at offset 18"),
        (bytes(range(256)), "byte 0x80 at offset 128"),
        (b'{"global_batch": 8}\0', "NUL character at offset 19"),
    ],
)
def test_file_that_is_no_text_is_refused(tmp_path, data, found):
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(InputError, match=found):
        build_json(Job, read_bytes(file), str(file))
    with pytest.raises(InputError, match=found):
        toml_value(file)


def test_place_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", tmp_path / "absent", "/dev/zero", "a\0b"):
        with pytest.raises(InputError):
            read_bytes(place)


def test_identity_ignores_field_order_and_takes_2_and_2_0_alike():
    assert canonical_json({"b": [1, 2.0], "a": {"d": 0.5, "c": -0.0}}) == (
        '{"a":{"c":0,"d":0.5},"b":[1,2]}'
    )
    assert identity({"a": 2, "b": 1}) == identity({"b": 1.0, "a": 2.0})
    assert identity({"a": 2}) != identity({"a": 2.5})
    assert identity({"a": 1}) != identity({"a": "1"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def test_identity_survives_a_file_with_fields_in_another_order():
    def turned(value):
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    other = build_json(Workload, json.dumps(turned(document())).encode(), "w")
    assert other == MODEL
    assert other.sha256 == MODEL.sha256


def test_pretty_json_round_trips():
    assert json.loads(pretty_json(MODEL)) == document()


def test_write_atomic_makes_folders_and_replaces_whole_files(tmp_path):
    file = tmp_path / "a" / "b" / "plan.json"
    write_atomic(file, "first, long\n")
    write_atomic(file, "Ä\n")
    assert file.read_bytes() == "Ä\n".encode()
    assert os.listdir(file.parent) == [file.name]
    plain_file = file.parent / "other"
    plain_file.touch()
    assert file.stat().st_mode == plain_file.stat().st_mode


def test_failed_write_keeps_the_old_file_and_leaves_no_temporary(tmp_path):
    file = tmp_path / "plan.json"
    write_atomic(file, "old")
    with files_of_at_most(100), pytest.raises(InputError, match=r"plan\.json: found .*too large"):
        write_atomic(file, "x" * 10_000)
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_lone_surrogate_is_written_as_the_escape_that_json_reads_back(tmp_path):
    file = tmp_path / "plan.json"
    write_atomic(file, '"a\udcffb"')
    assert json.loads(file.read_bytes()) == "a\udcffb"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_place_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for place in ("file/plan.json", "folder", "x" * 300):
        with pytest.raises(InputError):
            write_atomic(tmp_path / place, "text")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
