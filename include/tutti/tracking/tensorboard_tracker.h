#pragma once
// Event files that TensorBoard reads: scalars, text, hyperparameters. Written without protobuf: two messages and a
// checksum (tensorflow/core/util/event.proto, summary.proto; record_writer).
#include <filesystem>
#include <memory>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// Writes a new event file into `folder` (made if it is not there); a resumed run's file tells TensorBoard to drop
/// steps that are void. Throws tutti::Error where the disk fails.
class TensorBoardTracker final : public Tracker {
 public:
  /// Opens a new file in `folder`.
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
