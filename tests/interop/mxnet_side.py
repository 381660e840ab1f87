"""What MXNet itself writes and reads. Run by test_mxnet.py, with a Python that has MXNet 1.9.1."""

import base64
import json
import sys

import mxnet
import numpy


def main():
    command, path = sys.argv[1:3]
    print(json.dumps(COMMANDS[command](path)))


def write(path):
    """Records from standard input: [data, label, id] each, data in base64."""
    items = json.load(sys.stdin)
    writer = mxnet.recordio.MXIndexedRecordIO(path[:-3] + "idx", path, "w")
    for data, label, id_ in items:
        head = mxnet.recordio.IRHeader(0, label, id_, 0)
        writer.write_idx(id_, mxnet.recordio.pack(head, base64.b64decode(data)))
    writer.close()
    return len(items)


def read(path):
    """The records one after the other, and then each by its key."""
    stream = mxnet.recordio.MXRecordIO(path, "r")
    in_order = []
    while True:
        content = stream.read()
        if content is None:
            break
        in_order.append(_plain(content))
    indexed = mxnet.recordio.MXIndexedRecordIO(path[:-3] + "idx", path, "r")
    return {"in_order": in_order, "by_key": {key: _plain(indexed.read_idx(key)) for key in indexed.keys}}


def iterate(path):
    """Two batches of its own image loader: the mean of each image, and its label."""
    found = []
    for batch in mxnet.io.ImageRecordIter(
        path_imgrec=path, data_shape=(3, 32, 32), batch_size=4, preprocess_threads=1
    ):
        means = batch.data[0].asnumpy().mean(axis=(1, 2, 3)).tolist()
        found += zip(means, batch.label[0].asnumpy().tolist())  # noqa: B905 - Python 3.9 has no strict=
    return found


def _plain(content):
    head, data = mxnet.recordio.unpack(content)
    label = head.label.tolist() if isinstance(head.label, numpy.ndarray) else head.label
    return [base64.b64encode(data).decode(), label, head.id]


COMMANDS = {"write": write, "read": read, "iterate": iterate}

if __name__ == "__main__":
    main()
