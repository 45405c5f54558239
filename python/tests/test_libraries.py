"""Libraries that read files of an image: each is skipped by name where it is not installed."""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ferrofs
import pytest

pytestmark = pytest.mark.thread_unsafe(reason="starts processes")


def test_upath(image_file: Path, files: dict[str, bytes]) -> None:
    pytest.importorskip("fsspec")
    upath = pytest.importorskip("upath")
    root = upath.UPath("", protocol="erofs", fo=str(image_file))
    assert (root / "docs/a.md").read_bytes() == files["docs/a.md"]
    assert (root / "docs").is_dir() and not (root / "nowhere").exists()
    assert {path.name for path in (root / "docs").iterdir()} == {"a.md", "deep", "schön.txt"}
    assert [path.name for path in root.glob("docs/**/b.md")] == ["b.md"]
    assert pickle.loads(pickle.dumps(root / "hello.txt")).read_text() == "hello, world\n"


@pytest.fixture(scope="module")
def table_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    output = tmp_path_factory.mktemp("tables") / "tables.erofs"
    frame = pandas.DataFrame({"n": range(50_000), "text": [f"row {n}" for n in range(50_000)]})
    parquet = io.BytesIO()
    frame.to_parquet(parquet)
    entries = [("t.csv", frame.to_csv(index=False).encode()), ("t.parquet", parquet.getvalue())]
    parts = [(f"set/part{n}.parquet", parquet.getvalue()) for n in range(3)]
    ferrofs.build(entries + parts, output)
    return output


def test_pandas_reads_csv_and_parquet(table_image: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for read, name in [(pandas.read_csv, "t.csv"), (pandas.read_parquet, "t.parquet")]:
        frame = read(f"erofs://{name}", storage_options={"fo": str(table_image)})
        assert len(frame) == 50_000 and frame["text"][49_999] == "row 49999"
    with ferrofs.Image(table_image) as image, image.open("t.csv", buffering=-1) as file:
        assert len(pandas.read_csv(file)) == 50_000


def test_pyarrow_reads_a_dataset(table_image: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    fs = fsspec.filesystem("erofs", fo=str(table_image))
    dataset = pyarrow.dataset.dataset("set", filesystem=fs, format="parquet")
    assert dataset.count_rows() == 150_000
    with ferrofs.Image(table_image) as image:
        table = pyarrow.parquet.read_table(image.open("t.parquet"), columns=["n"])
        assert table["n"][-1].as_py() == 49_999


class ImageDataset:
    """A data set of torch: one file of the image an item."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.image, self.names = ferrofs.Image(path), names
        self.image.read(names[0])

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return hashlib.sha256(self.image.read(self.names[index])).hexdigest()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_torch_data_loader(method: str, image_file: Path, files: dict[str, bytes]) -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    names = sorted(files)
    loader = data.DataLoader(
        ImageDataset(image_file, names), batch_size=2, num_workers=2, multiprocessing_context=method
    )
    found = [digest for batch in loader for digest in batch]
    assert found == [hashlib.sha256(files[name]).hexdigest() for name in names]


@pytest.fixture(scope="module")
def object_store(image_file: Path) -> Iterator[dict[str, Any]]:
    """An object store on this machine that has the image."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    import s3fs

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.setenv(name, "test")
    store = server.ThreadedMotoServer(ip_address="127.0.0.1", port=port)
    store.start()
    options = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
    try:
        fs = s3fs.S3FileSystem(**options)
        fs.mkdir("bucket")
        fs.pipe("bucket/all.erofs", image_file.read_bytes())
        yield options
    finally:
        store.stop()
        environment.undo()


def test_an_object_store(object_store: dict[str, Any], files: dict[str, bytes]) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("erofs://large::s3://bucket/all.erofs", s3=object_store) as file:
        assert file.read() == files["large"]


def test_dask_reads_through_a_pickled_file_system(
    object_store: dict[str, Any], files: dict[str, bytes]
) -> None:
    fsspec = pytest.importorskip("fsspec")
    distributed = pytest.importorskip("distributed")
    fs = fsspec.filesystem(
        "erofs", fo="bucket/all.erofs", target_protocol="s3", target_options=object_store
    )
    names = sorted(files)

    def digest(fs: Any, name: str) -> str:
        return hashlib.sha256(fs.cat_file(name)).hexdigest()

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = client.gather([client.submit(digest, fs, name) for name in names])
    assert found == [hashlib.sha256(files[name]).hexdigest() for name in names]
