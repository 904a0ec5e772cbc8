#include "tutti/tracking/tensorboard_tracker.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>

#include "core/host_name.h"
#include "tracking/append_file.h"
#include "tracking/event_messages.h"
#include "tracking/unix_time.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

const std::string name_begin = "events.out.tfevents.";

/// Returns a name that sorts after the existing files, because TensorBoard reads a folder's files in the order of their
/// names. This holds also for files of the same second, or of a clock that was ahead.
fs::path next_event_file(const fs::path& folder) {
  auto second = static_cast<std::int64_t>(unix_time());
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with(name_begin)) continue;
    std::int64_t taken = 0;
    std::from_chars(name.data() + name_begin.size(), name.data() + name.size(), taken);
    second = std::max(second, taken + 1);
  }
  auto digits = std::to_string(second);
  digits.insert(0, digits.size() < 10 ? 10 - digits.size() : 0, '0');
  return folder / (name_begin + digits + "." + host_name() + "." + std::to_string(::getpid()) + ".0");
}

}  // namespace

class TensorBoardTracker::EventFile {
 public:
  explicit EventFile(const fs::path& folder) : file_(next_event_file(folder), AppendFile::Open::must_be_new) {
    write(file_version_event(unix_time()));
  }

  void write(const std::string& event) { file_.append(event_record(event)); }
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

TensorBoardTracker::TensorBoardTracker(fs::path folder) : file_(std::make_unique<EventFile>(folder)) {}

TensorBoardTracker::~TensorBoardTracker() = default;

void TensorBoardTracker::start(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) {
  const double time = unix_time();
  // Readers also drop the step of this event, so a resumed run names the step after its checkpoint.
  file_->write(session_start_event(time, step == 0 ? 0 : step + 1));
  if (hyperparameters.empty()) return;
  file_->write(hyperparameters_event(time, step, hyperparameters));
  file_->write(text_event(time, step, "hyperparameters", hyperparameters_table(run, hyperparameters)));
}

void TensorBoardTracker::log(std::int64_t step, const Scalars& scalars) {
  file_->write(scalars_event(unix_time(), step, scalars));
}

void TensorBoardTracker::log_text(std::int64_t step, const std::string& name, const std::string& text) {
  file_->write(text_event(unix_time(), step, name, text));
}

void TensorBoardTracker::flush() {
  file_->sync();
}

}  // namespace tutti
