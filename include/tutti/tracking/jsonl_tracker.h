#pragma once
// A run as lines of JSON: what `tutti report` reads. The format: docs/metrics.md.
#include <filesystem>
#include <memory>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// Appends to `path` (folders are made). Every line is one write, so a killed run leaves whole lines, but perhaps the
/// last. Throws tutti::Error where the disk fails.
class JsonlTracker final : public Tracker {
 public:
  /// Opens the file, or makes it.
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
