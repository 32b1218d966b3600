"""Commands that must fail, run in this process."""

from autoplan.cli.main import main


def one_line(capsys, *arguments):
    """Runs a command that must fail with 2; returns what it said on standard error."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse's own way out
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    return err.strip()
