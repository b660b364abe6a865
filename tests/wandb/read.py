"""Prints what a W&B offline file has, as JSON: the config, and the rows of the history.

The file is a LevelDB log (blocks of 32 KiB, records of a checksum, a length, a kind and a part) of wandb's
own messages, after a header of 7 bytes.
"""

import json
import struct
import sys

from wandb.proto import wandb_internal_pb2

BLOCK, HEAD = 32768, 7


def records(data: bytes):
    assert data[:4] == b":W&B", data[:HEAD]
    at, parts = HEAD, []
    while at + HEAD <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        if kind == 0:
            at += left
            continue
        parts.append(data[at + HEAD : at + HEAD + length])
        at += HEAD + length
        # 1: whole, 2: first, 3: middle, 4: last.
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


found = {"config": {}, "history": []}
for record in records(open(sys.argv[1], "rb").read()):
    if record.HasField("run"):
        found["name"], found["group"] = record.run.display_name, record.run.run_group
        for item in record.run.config.update:
            found["config"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    if record.HasField("history"):
        row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        found["history"].append(row)
print(json.dumps(found))
