"""Prints what the tensorboard package reads from a log folder, as JSON."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_accumulator import TENSORS, SCALARS
from tensorboard.util import tensor_util

accumulator = EventAccumulator(sys.argv[1], size_guidance={SCALARS: 0, TENSORS: 0})
accumulator.Reload()
tags = accumulator.Tags()
scalars = {
    tag: [[event.step, event.value] for event in accumulator.Scalars(tag)]
    for tag in tags[SCALARS]
}
texts = {}
for tag in tags[TENSORS]:
    plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
    texts[tag] = [
        [event.step, plugin, [t.decode() for t in tensor_util.make_ndarray(event.tensor_proto)]]
        for event in accumulator.Tensors(tag)
    ]
json.dump({"scalars": scalars, "texts": texts}, sys.stdout)
