#pragma once
// Metrics of a run as lines of JSON, the input of `tutti report`. Format: docs/metrics.md.
#include <filesystem>
#include <memory>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// Appends to `path`; creates its folders. Every line is one write, so only the last line of a killed run may be
/// incomplete. Throws tutti::Error if writing fails.
class JsonlTracker final : public Tracker {
 public:
  /// Opens or creates the file.
  explicit JsonlTracker(std::filesystem::path path);
  ~JsonlTracker() override;

  void start(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) override;
  void log(std::int64_t step, const Scalars& scalars) override;
  void log_text(std::int64_t step, const std::string& name, const std::string& text) override;
  void flush() override;

 private:
  class File;
  std::unique_ptr<File> file_;
};

}  // namespace tutti
