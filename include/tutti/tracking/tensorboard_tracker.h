#pragma once
// Event files for TensorBoard: scalars, texts, hyperparameters. The two protobuf messages and the checksum are encoded
// without a library (tensorflow/core/util/event.proto, summary.proto; record_writer).
#include <filesystem>
#include <memory>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// Writes a new event file into `folder`, which it creates if needed. The file of a resumed run tells TensorBoard to
/// drop steps after the checkpoint. Throws tutti::Error if writing fails.
class TensorBoardTracker final : public Tracker {
 public:
  /// Creates a file in `folder`.
  explicit TensorBoardTracker(std::filesystem::path folder);
  ~TensorBoardTracker() override;

  void start(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) override;
  void log(std::int64_t step, const Scalars& scalars) override;
  void log_text(std::int64_t step, const std::string& name, const std::string& text) override;
  void flush() override;

 private:
  class EventFile;
  std::unique_ptr<EventFile> file_;
};

}  // namespace tutti
