"""Prints what TensorBoard's own reader finds in a folder of event files, as JSON. Numbers are strings: JSON has no NaN."""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util import tensor_util


def plain(value):
    return getattr(value, value.WhichOneof("kind"))


def main(folder):
    events = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found = {"scalars": {}, "texts": {}, "hyperparameters": {}}
    for tag in tags["scalars"]:
        found["scalars"][tag] = [[event.step, repr(event.value)] for event in events.Scalars(tag)]
    for tag in tags["tensors"]:
        plugin = events.SummaryMetadata(tag).plugin_data
        if plugin.plugin_name == "text":
            found["texts"][tag] = [
                [event.step, tensor_util.make_ndarray(event.tensor_proto).item().decode()] for event in events.Tensors(tag)
            ]
        if plugin.plugin_name == "hparams" and tag == hparams.SESSION_START_INFO_TAG:
            info = hparams.parse_session_start_info_plugin_data(plugin.content)
            found["hyperparameters"] = {name: repr(plain(value)) for name, value in info.hparams.items()}
            found["started"] = info.start_time_secs > 1e9
    print(json.dumps(found))


main(sys.argv[1])
