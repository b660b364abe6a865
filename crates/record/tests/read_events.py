"""Prints what the tensorboard package reads from a log folder, as JSON."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_accumulator import TENSORS, SCALARS
from tensorboard import context as tensorboard_context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, metadata
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
    if plugin == metadata.PLUGIN_NAME:
        continue
    texts[tag] = [
        [event.step, plugin, [t.decode() for t in tensor_util.make_ndarray(event.tensor_proto)]]
        for event in accumulator.Tensors(tag)
    ]

# As TensorBoard itself answers the page of the hparams tab.
multiplexer = plugin_event_multiplexer.EventMultiplexer(size_guidance={SCALARS: 0, TENSORS: 0})
multiplexer.AddRunsFromDirectory(sys.argv[1])
multiplexer.Reload()
provider = data_provider.MultiplexerDataProvider(multiplexer, sys.argv[1])
context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
request = tensorboard_context.RequestContext()
content = context.hparams_metadata(request, "")
experiment = context.experiment_from_metadata(
    request, "", True, content, context.hparams_from_data_provider(request, "", None)
)
types = {info.name: api_pb2.DataType.Name(info.type) for info in experiment.hparam_infos}
(tags,) = content.values()
start = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG])
hparams = {
    name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
}
json.dump(
    {"scalars": scalars, "texts": texts, "hparams": hparams, "hparam_types": types}, sys.stdout
)
