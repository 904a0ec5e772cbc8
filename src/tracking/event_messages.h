#pragma once
// TensorBoard's event file: records of Event messages. Field numbers:
// tensorboard/compat/proto/{event,summary,tensor}.proto and tensorboard/plugins/hparams/plugin_data.proto.
// The record: tensorflow/core/lib/io/record_writer.h.
#include <cstdint>
#include <string>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// The length, its checksum, the bytes, and their checksum.
std::string event_record(const std::string& event);

// Encoded Event messages. `time` is in seconds since 1970.
std::string file_version_event(double time);
/// Tells readers to drop the values of `step` and of later steps.
std::string session_start_event(double time, std::int64_t step);
std::string scalars_event(double time, std::int64_t step, const Scalars& scalars);
std::string text_event(double time, std::int64_t step, const std::string& name, const std::string& text);
/// The values for the HPARAMS page, which names a run after its folder.
std::string hyperparameters_event(double time, std::int64_t step, const Hyperparameters& hyperparameters);

/// The same values as a Markdown table, for the TEXT page.
std::string hyperparameters_table(const std::string& run, const Hyperparameters& hyperparameters);

}  // namespace tutti
