"""The network of the FID: its preprocessing and folding against direct formulas, its files, and where they come from."""

import hashlib
import http.server
import os
import pickle
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from springwell.errors import UserError
from springwell.evaluation import weights
from springwell.evaluation.inception import BlockE, Convolution, Inception, Layer, _averaged, preprocess, resize_tf1
from springwell.evaluation.weights import download, find_weights, load_inception, read_weights, save_inception
from tests.listener import Listener

DATA = Path(os.environ.get("SPRINGWELL_DATA") or "~/data").expanduser()
PUBLISHED = DATA / "inception" / "fid_inception_2015_12_05.pt"
ROUNDING = 2.0**-23


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    """No weights but those that a test puts somewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SPRINGWELL_INCEPTION", raising=False)


@pytest.mark.parametrize(("height", "width", "size"), [(5, 8, 13), (32, 28, 61), (13, 20, 7)])
def test_tf1_resize_is_the_formula(height, width, size):
    x = np.random.default_rng(0).uniform(0, 255, (2, 3, height, width))
    expected = np.empty((2, 3, size, size))
    for i in range(size):
        top, down = int(i * height / size), i * height / size % 1
        for j in range(size):
            left, right = int(j * width / size), j * width / size % 1
            below, beside = min(top + 1, height - 1), min(left + 1, width - 1)
            upper = (1 - right) * x[:, :, top, left] + right * x[:, :, top, beside]
            lower = (1 - right) * x[:, :, below, left] + right * x[:, :, below, beside]
            expected[:, :, i, j] = (1 - down) * upper + down * lower
    # A place is known to a rounding of itself, and neighbouring pixels differ by up to 255.
    tolerance = 255 * 2 * (height + width) * ROUNDING
    np.testing.assert_allclose(resize_tf1(torch.from_numpy(x).float(), size).numpy(), expected, atol=tolerance)
    np.testing.assert_allclose(resize_tf1(torch.from_numpy(x), size).numpy(), expected, atol=1e-10)


def test_bytes_become_numbers():
    black, white = torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.full((1, 3, 9, 4), 255, dtype=torch.uint8)
    for how, low, high in (("tf1", -1, 127 / 128), ("pytorch", -1, 1)):
        assert preprocess(black, how).shape == (1, 3, 299, 299)
        torch.testing.assert_close(preprocess(black, how), torch.full((1, 3, 299, 299), float(low)))
        torch.testing.assert_close(preprocess(white, how), torch.full((1, 3, 299, 299), float(high)))
    # A ramp of two pixels tells the two apart: TensorFlow 1 is at its end half a picture early.
    ramp = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 1, 2, 2)
    tf1, half_pixel = (preprocess(ramp, how)[0, 0, 0] for how in ("tf1", "pytorch"))
    assert tf1[150] > 0.98 * 127 / 128
    assert float(half_pixel[149]) == pytest.approx(0, abs=1e-6)
    with pytest.raises(UserError, match=r"images are torch.float32 \[1, 3, 4, 4\]; Inception takes uint8"):
        preprocess(torch.zeros(1, 3, 4, 4))


def random_layer(shape, generator):
    def normal(*size):
        return torch.randn(*size, generator=generator)

    num = shape[0]
    return Layer(0.1 * normal(*shape), normal(num), normal(num), normal(num).square())


def test_folding_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    convolution, layer = Convolution(4, 6, 3, 2, 1), random_layer((6, 4, 3, 3), generator)
    scale = torch.rand(6, generator=generator)
    x = torch.randn(2, 4, 9, 9, generator=generator)
    for given in (None, scale):
        convolution.fold(layer._replace(scale=given))
        double = [part.double() for part in layer[:4]]
        linear = F.conv2d(x.double(), double[0], stride=2, padding=1)
        gamma = None if given is None else given.double()
        expected = F.batch_norm(linear, double[2], double[3], gamma, double[1], eps=1e-3).relu()
        torch.testing.assert_close(convolution(x).double(), expected, rtol=1e-4, atol=1e-4)


def test_pooling_is_that_of_2015():
    generator = torch.Generator().manual_seed(0)
    convolution = Convolution(5, 3, 1)
    convolution.fold(random_layer((3, 5, 1, 1), generator))
    x = torch.randn(2, 5, 4, 4, generator=generator)
    padded = F.pad(x, (1, 1, 1, 1), value=torch.nan)
    means = torch.stack([padded[:, :, i : i + 3, j : j + 3].nanmean((2, 3)) for i in range(4) for j in range(4)], -1)
    expected = convolution(means.unflatten(-1, (4, 4)))
    torch.testing.assert_close(_averaged(convolution, x), expected, rtol=1e-4, atol=1e-5)
    network = Inception()
    assert isinstance(network.mixed_7c, BlockE)
    assert network.mixed_7c.maximum
    assert not network.mixed_7b.maximum


@pytest.fixture(scope="module")
def layers():
    """Parameters for the whole network, none equal to another."""
    generator = torch.Generator().manual_seed(0)
    return {name: random_layer(c.weight.shape, generator) for name, c in Inception().convolutions().items()}


@pytest.fixture(scope="module")
def fc():
    return torch.randn(1008, 2048, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def files(layers, fc, tmp_path_factory):
    """The same weights in the three kinds of file."""
    folder = tmp_path_factory.mktemp("weights")
    save_inception(folder / "ours.safetensors", layers, fc)
    state = {"fc.weight": fc, "fc.bias": torch.zeros(1008)}
    for name, layer in layers.items():
        theirs = name[0].upper() + name[1:]
        state |= {
            f"{theirs}.conv.weight": layer.weight,
            f"{theirs}.bn.bias": layer.beta,
            f"{theirs}.bn.running_mean": layer.mean,
        }
        state |= {f"{theirs}.bn.running_var": layer.var, f"{theirs}.bn.weight": torch.ones_like(layer.var)}
        state[f"{theirs}.bn.num_batches_tracked"] = torch.tensor(0)
    torch.save(state, folder / "state.pth")
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    root = nn.Module()
    for name, theirs in weights._torchscript_names().items():
        place = root
        for step in ["layers", *theirs.split(".")]:
            if not hasattr(place, step):
                place.add_module(step, nn.Module())
            place = getattr(place, step)
        for part, tensor in zip(Layer._fields, layers[name], strict=True):
            if tensor is not None:
                place.register_parameter(part, nn.Parameter(tensor))
    root.add_module("output", nn.Linear(2048, 1008))
    root.output.weight = nn.Parameter(fc)
    torch.jit.save(torch.jit.script(root), folder / "script.pt")
    return folder


@pytest.mark.parametrize("name", ["ours.safetensors", "state.pth", "legacy.pth", "script.pt"])
def test_every_kind_of_file_gives_the_same_weights(name, files, layers, fc):
    found, found_fc = read_weights(files / name)
    assert found.keys() == layers.keys()
    for key, layer in layers.items():
        assert all(torch.equal(x, y) for x, y in zip(found[key][:4], layer[:4], strict=True))
    assert torch.equal(found_fc, fc)
    assert Inception().load(found, found_fc).digest == Inception().load(layers).digest


def test_other_parameters_are_noticed(files):
    listener = Listener()
    network = load_inception(files / "ours.safetensors", reporter=listener)
    assert "not the parameters of the FID's Inception" in listener.said[0]
    assert network.fc.shape == (1008, 2048)
    assert not any(True for _ in network.parameters())


class Harm:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_nothing_in_a_file_is_run(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("bad.pt", "w") as archive:
        archive.writestr("bad/constants.pkl", b"")
        archive.writestr("bad/data.pkl", pickle.dumps({"layers": Harm()}, 2))
    torch.save({"fc.weight": Harm()}, "bad.pth")
    torch.save({"fc.weight": Harm()}, "old.pth", _use_new_zipfile_serialization=False)
    for name in ("bad.pt", "bad.pth", "old.pth"):
        with pytest.raises(UserError, match=rf"inception={name}: asks for \w+\.system, which .* not need.*inception=PATH"):
            load_inception(Path(name))
    assert not Path("harmed").exists()


NESTED = b"K\x01" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(45))
OBJECTS = b"".join(b"c__torch__\nA\n)\x81q%c}(X\x01\x00\x00\x00ah%cX\x01\x00\x00\x00bh%cub" % (i + 1, i, i) for i in range(45))


def one_storage(num, pickled):
    """A pickle of a tensor whose memory, of ``num`` float32, has the key 0, and of what follows."""
    memory = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ%btQ" % num.to_bytes(
        4, "little"
    )
    return b"\x80\x02" + pickled % {b"memory": memory} + b"."


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"\x80\x02}" + NESTED + b"K\x01s.", "uses a tuple twice"),
        (b"\x80\x02K\x01\x85K\x020q\x00h\x00\x86.", "a pickle with POP"),
        (b"\x80\x02K\x01\x85q\x00q\x01h\x01\x86.", "uses a tuple twice"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "a pickle with STACK_GLOBAL"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "remembers more than it holds"),
        (b"\x80\x02c__torch__\nA\n)\x81q\x00}b" + OBJECTS + b".", "has no layer"),
        (one_storage(5, b"%(memory)b"), "0 has 16 bytes, not 20"),
        (one_storage(4, b"ctorch._utils\n_rebuild_tensor_v2\n(%(memory)bK\x00K\x05\x85K\x00\x85tR"), "larger than its memory"),
        (one_storage(4, b"ctorch._utils\n_rebuild_tensor_v2\n(%(memory)bK\x00K\x05\x85K\x01\x85tR"), "larger than its memory"),
        (one_storage(4, b"ctorch._utils\n_rebuild_tensor_v2\n(%(memory)bK\x00K\x04\x85K\x01\x85tR)b"), "form that is not read"),
        (one_storage(4, b"%(memory)bccollections\nOrderedDict\n]\x85R"), "holds no module"),
        (b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + NESTED + b"K\x00K\x04tQ.", "uses a tuple twice"),
    ],
)
def test_pickles_that_are_no_weights(tmp_path, pickled, reason):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/constants.pkl", b"")
        archive.writestr("a/data/0", bytes(16))
    with pytest.raises(UserError, match=reason):
        load_inception(tmp_path / "a.pt")
    # As a state dict, none is read either.
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/data/0", bytes(16))
    with pytest.raises(UserError) as caught:
        load_inception(tmp_path / "a.pth")
    assert "\n" not in str(caught.value)


def test_memory_is_read_once_and_bounded(tmp_path, monkeypatch):
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(%(memory)bK\x00K\x04\x85K\x01\x85tR"
    path, calls, read = tmp_path / "a.pt", [], zipfile.ZipFile.read
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", one_storage(4, b"(" + 25 * tensor + b"l"))
        archive.writestr("a/constants.pkl", b"")
        archive.writestr("a/data/0", bytes(16))
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, name: calls.append(name) or read(self, name))
    with pytest.raises(UserError, match="holds no module"):
        read_weights(path)
    assert calls == ["a/data.pkl", "a/data/0"]
    monkeypatch.setattr(weights, "_MAX_BYTES", 1 << 20)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/1", bytes(1 << 20))
    with pytest.raises(UserError, match="holds more than 1 MiB"):
        read_weights(path)
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(UserError, match="has more than 1 MiB"):
        read_weights(path)


def test_state_dicts_of_modules(tmp_path):
    module = nn.Sequential()
    module.add_module("bn", nn.BatchNorm2d(3))
    module.add_module("conv", nn.Conv2d(3, 3, 1, bias=False))
    holder = nn.Module()
    holder.add_module("A", module)
    for new in (False, True):
        torch.save(holder.state_dict(), tmp_path / "a.pth", _use_new_zipfile_serialization=new)
        found, fc = read_weights(tmp_path / "a.pth")
        assert fc is None
        assert torch.equal(found["a"].weight, module.conv.weight)
    torch.save(holder.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    data = (tmp_path / "old.pth").read_bytes()
    for length in (len(data) - 1, len(data) // 2, 100, 20, 5):
        (tmp_path / "old.pth").write_bytes(data[:length])
        with pytest.raises(UserError):
            read_weights(tmp_path / "old.pth")


def test_files_that_are_no_weights(files, layers, tmp_path):
    less = {name: layer for name, layer in layers.items() if name != "mixed_7c.branch_pool"}
    wrong = layers | {"conv2d_1a_3x3": layers["conv2d_1a_3x3"]._replace(weight=torch.zeros(32, 32, 3, 3))}
    infinite = layers | {"mixed_6a.branch3x3": layers["mixed_6a.branch3x3"]._replace(mean=torch.full((384,), torch.inf))}
    for name, content in (("less", less), ("wrong", wrong), ("infinite", infinite)):
        save_inception(tmp_path / f"{name}.safetensors", content)
    data = (files / "script.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("not weights")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, reason in (
        ("less.safetensors", "has no layer 'mixed_7c.branch_pool'"),
        ("wrong.safetensors", r"'conv2d_1a_3x3' has a weight of shape \[32, 32, 3, 3\], not \[32, 3, 3, 3\]"),
        ("infinite.safetensors", "'mixed_6a.branch3x3' has a mean that is not finite"),
        ("cut.pt", "cannot be read"),
        ("empty.pth", "cannot be read"),
        ("text.safetensors", "cannot be read"),
        ("list.pth", "holds no state dict"),
    ):
        with pytest.raises(UserError, match=reason) as caught:
            load_inception(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_name_promises_a_hash(tmp_path):
    path = tmp_path / "weights-6726825d.pth"
    path.write_bytes(b"other")
    found = hashlib.sha256(b"other").hexdigest()[:8]
    with pytest.raises(UserError, match=f"damaged; its SHA-256 begins with {found}, not 6726825d"):
        load_inception(path)


def test_a_date_in_the_name_of_good_weights_is_no_hash(files, layers, tmp_path, monkeypatch):
    path = tmp_path / "inception-20151205.safetensors"
    path.write_bytes((files / "ours.safetensors").read_bytes())
    with pytest.raises(UserError, match="damaged"):
        load_inception(path)
    monkeypatch.setattr(weights, "DIGEST", Inception().load(layers).digest)
    assert load_inception(path).digest == weights.DIGEST


def test_classes_are_those_of_the_fid(layers, fc):
    with pytest.raises(UserError, match=r"the fc layer is \[1000, 2048\], not \[1008, 2048\]"):
        Inception().load(layers, fc[:1000])


def test_where_weights_are_looked_for(tmp_path, monkeypatch):
    assert find_weights() is None
    in_data, in_cache = tmp_path / "data/inception/inception-2015-12-05.pt", tmp_path / "cache/springwell" / weights.NAME
    named, given = tmp_path / "named.pth", tmp_path / "given.pth"
    for file in (in_data, in_cache, named, given):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if file == named:
            monkeypatch.setenv("SPRINGWELL_INCEPTION", str(named))
        assert find_weights(given if file == given else None) == file
    with pytest.raises(UserError, match=r"inception=absent\.pth: no such file\. Get https://.*6726825d\.pth"):
        find_weights(Path("absent.pth"))
    monkeypatch.setenv("SPRINGWELL_INCEPTION", str(tmp_path))
    with pytest.raises(UserError, match=r"SPRINGWELL_INCEPTION .*: is a folder\. Get "):
        find_weights()


class Handler(http.server.BaseHTTPRequestHandler):
    content = bytes(range(256)) * 8192

    def do_GET(self):
        if "absent" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[:1000] if "cut" in self.path else self.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_download(server, tmp_path):
    right = hashlib.sha256(Handler.content).hexdigest()
    listener, cache = Listener(), tmp_path / "cache" / "springwell"
    for url, digest, reason in (
        (f"{server}/a.pth", "0" * 64, f"its SHA-256 begins with {right[:8]}, not 00000000; not kept"),
        (f"{server}/cut.pth", right, "broke off after 1,000 of 2,097,152 bytes"),
        (f"{server}/absent.pth", right, r"the download failed \(Not Found\)\. Get https"),
        ("http://127.0.0.1:1/a.pth", right, r"no weights of Inception here, and the download failed \(.*\)\. Get https"),
    ):
        with pytest.raises(UserError, match=reason):
            download(listener, url, digest)
        assert list(cache.iterdir()) == []
    assert download(listener, f"{server}/a.pth", right).read_bytes() == Handler.content
    assert [file.name for file in cache.iterdir()] == ["a.pth"]
    assert listener.said[-1] == f"downloading the weights of Inception from {server}/a.pth to {cache / 'a.pth'}"


def test_weights_are_fetched_where_there_are_none(server, monkeypatch):
    monkeypatch.setattr(weights, "URL", f"{server}/inception.pth")
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(Handler.content).hexdigest())
    with pytest.raises(UserError, match=r"springwell/inception.pth: cannot be read"):
        load_inception()


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs the published weights")
def test_features_are_those_of_the_published_file():
    listener = Listener()
    network = load_inception(PUBLISHED, reporter=listener)
    assert listener.said == []
    assert network.fc is None
    published = torch.jit.load(PUBLISHED).eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for how in ("tf1", "pytorch"):
        network.preprocessing = how
        with torch.inference_mode():
            expected = published(preprocess(images, how))
        # About sqrt(depth * terms per sum) roundings, measured 1.3e-6.
        assert float((network(images) - expected).norm() / expected.norm()) < 1e-5
