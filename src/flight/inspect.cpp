#include "tutti/detail/flight/inspect.h"

#include <chrono>

#include "flight/diagnose.h"
#include "flight/job_folder.h"
#include "flight/rank_record.h"
#include "tutti/core/error.h"

namespace tutti {

std::string inspect(const InspectOptions& options) {
  auto folders = options.folders;
  std::string text;
  if (folders.empty()) {
    const auto jobs = flight::jobs_with_records();
    if (jobs.running.empty() && jobs.ended.empty()) {
      throw UsageError(
          "found no flight records of a `tutti launch` job on this machine: name a folder that holds flight records.");
    }
    folders.push_back(jobs.running.empty() ? jobs.ended.front() : jobs.running.front());
    text = (jobs.running.empty() ? "The newest job with records is " : "The newest running job with records is ") +
           folders.front().string() + ".\n";
    for (std::size_t i = 1; i < jobs.running.size(); ++i) text += "Also running: " + jobs.running[i].string() + ".\n";
  }
  const auto records = flight::read_records(folders);
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  text += flight::diagnose(records, now);
  if (options.last_operations == 0) return text;
  const auto sight = flight::reference_time(records, now);
  for (const auto& record : records) text += flight::last_operations(record, options.last_operations, sight);
  return text;
}

}  // namespace tutti
