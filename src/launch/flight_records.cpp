#include "launch/flight_records.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "flight/rank_record.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/flight/inspect.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

bool holds_records(const fs::path& folder) {
  std::error_code error;
  return std::ranges::any_of(fs::directory_iterator(folder, error),
                             [](const fs::directory_entry& entry) { return flight::is_record(entry.path()); });
}

}  // namespace

FlightRecords::FlightRecords(const std::string& job) {
  const char* named = std::getenv(flight::records_variable);
  // Inside a rank of another job, the variable names that job's folder, which this job must not use.
  if (named != nullptr && !flight::is_job_folder(named)) {
    folder_ = *named == '\0' ? fs::path() : fs::absolute(named);
    return;
  }
  try {
    job_folder_ = std::make_unique<flight::JobFolder>(job);
    folder_ = job_folder_->path();
  } catch (const std::system_error& error) {
    Logger().warning(std::string("flight records are disabled: ") + error.what() + "; set " + flight::records_variable +
                     " to a writable folder, or to an empty value");
  }
}

std::string FlightRecords::describe_failure() {
  if (folder_.empty() || !holds_records(folder_)) return "";
  if (job_folder_) job_folder_->keep();
  std::string text = "tutti: last operations of the ranks (details: `tutti inspect " + folder_.string() + "`):\n";
  try {
    std::istringstream lines(inspect({.folders = {folder_}}));
    for (std::string line; std::getline(lines, line);) text += "    " + line + '\n';
  } catch (const UsageError& error) {
    text += std::string("    ") + error.what() + '\n';
  }
  return text;
}

}  // namespace tutti
