"""Exceptions, their exit codes, and the suggestion of a close name."""

from dystop import errors


def test_every_error_has_its_exit_code():
    codes = {
        "DystopError": 1,
        "ConfigError": 2,
        "DataError": 2,
        "RunFolderError": 2,
        "CapacityError": 2,
        "StorageError": 3,
        "PlanError": 4,
        "VerificationError": 5,
    }
    for name, code in codes.items():
        kind = getattr(errors, name)
        assert issubclass(kind, errors.DystopError)
        assert kind.exit_code == code
        assert f"{name} " in errors.__doc__
    assert issubclass(errors.ConfigError, ValueError)


def test_the_nearest_name_is_suggested():
    assert "'ring'" in errors.nearest("rinng", ["complete", "ring"])
    assert errors.nearest("qqqq", ["complete", "ring"]) == ""
    assert errors.nearest("ring", []) == ""
