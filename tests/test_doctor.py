"""springwell doctor: what it finds, and that it finds what is broken."""

import json

from springwell.app import doctor


def verdicts(device="cpu", **options):
    return {check.name: check for check in doctor.examine(device, **options)}


def test_a_sound_installation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = verdicts(data_root=str(tmp_path))
    for name in ("digits", "float64", "bfloat16", "this folder", "cache", "models that ship", "sampling", "density"):
        assert found[name].verdict == "ok", found[name]
    assert found["mnist"].verdict == "absent"
    assert "not found; looked in" in found["mnist"].found
    assert list(tmp_path.glob(".springwell-*")) == []


def test_runs_of_the_same_name_are_not_taken_for_what_ships_and_damaged_data_are_not_absent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("checkerboard", "MNIST/raw"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkerboard" / "config.json").write_text("{}")
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / "MNIST" / "raw" / name).write_bytes(b"no images at all")
    found = verdicts(data_root=str(tmp_path))
    assert found["models that ship"].verdict == "ok"
    assert found["density"].verdict == "ok"
    assert found["mnist"].verdict == "failed"


def test_wrong_samples_wrong_densities_and_damaged_models_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = doctor.Noise

    class TooWide(real):
        def normal(self, *shape):
            return 1.2 * super().normal(*shape)

    monkeypatch.setattr(doctor, "Noise", TooWide)
    monkeypatch.setattr(doctor.zoo, "names", lambda: ["checkerboard", "a-model-that-is-not-there"])
    monkeypatch.setattr(doctor, "divergences", lambda *arguments: {"kl": 0.5})
    found = verdicts()
    assert found["sampling"].verdict == "failed"
    assert "of 4096 exact Gaussian samples is" in found["sampling"].found
    assert found["density"].verdict == "failed"
    assert "0.500000 nats here" in found["density"].found
    assert found["models that ship"].verdict == "failed"


def test_a_processor_that_traps_bfloat16_is_named(monkeypatch):
    monkeypatch.setattr(doctor.subprocess, "run", lambda command, **_: doctor.subprocess.CompletedProcess(command, -4, "", ""))
    found = doctor._try("bfloat16", doctor._bfloat16)
    assert (found.verdict, "ONEDNN_MAX_CPU_ISA=" in found.found) == ("absent", True)


def test_the_command_says_what_failed(springwell, tmp_path, monkeypatch):
    result = springwell("doctor", "--json")
    assert result.returncode == 0, result.stdout
    assert json.loads(result.stdout.splitlines()[-1])["failed"] == []
    monkeypatch.setenv("SPRINGWELL_INCEPTION", str(tmp_path / "nowhere.pth"))
    result = springwell("doctor")
    assert result.returncode == 1
    assert "failed: Inception" in result.stdout
