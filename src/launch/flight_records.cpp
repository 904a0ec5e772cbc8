#include "launch/flight_records.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "flight/diagnose.h"
#include "flight/recorder.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/flight/inspect.h"

namespace tutti {

namespace fs = std::filesystem;

FlightRecords::FlightRecords(const std::string& job) {
  const char* named = std::getenv(flight::records_variable);
  // Inside a rank of another job, the variable names that job's folder, which this job must not use.
  if (named != nullptr && !flight::is_job_folder(named)) {
    folder_ = *named == '\0' ? fs::path() : fs::absolute(named);
    flight::remove_ended_records(folder_);
    return;
  }
  try {
    job_folder_ = std::make_unique<flight::JobFolder>(job);
    folder_ = job_folder_->path();
    flight::remove_ended_records(folder_);
  } catch (const std::system_error& error) {
    Logger().warning(std::string("flight records are disabled: ") + error.what() + "; set " + flight::records_variable +
                     " to a writable folder, or to an empty value");
  }
}

std::vector<flight::RankRecord> FlightRecords::records(int attempt) const {
  if (folder_.empty() || !flight::holds_records(folder_)) return {};
  auto records = flight::read_records({folder_});
  std::erase_if(records, [&](const flight::RankRecord& record) { return record.restart != attempt; });
  return records;
}

std::set<int> FlightRecords::ranks_with_failed_calls(int attempt) {
  if (job_folder_ && flight::holds_records(folder_)) job_folder_->keep();
  std::set<int> ranks;
  try {
    for (const auto& record : records(attempt)) {
      if (flight::has_failed_call(record)) ranks.insert(record.rank);
    }
  } catch (const UsageError&) {
    ranks.clear();  // describe_failure() reports the damaged record
  }
  return ranks;
}

std::string FlightRecords::describe_failure(int attempt) const {
  std::string text = "tutti: last operations of the ranks (details: `tutti inspect " + folder_.string() + "`):\n";
  try {
    const auto has_open_call = [](const flight::RankRecord& record) {
      return flight::has_failed_call(record) ||
             std::ranges::any_of(record.operations, &flight::RecordedOperation::in_flight);
    };
    if (std::ranges::none_of(records(attempt), has_open_call)) return "";
    std::istringstream lines(inspect({.folders = {folder_}}));
    for (std::string line; std::getline(lines, line);) text += "    " + line + '\n';
  } catch (const UsageError& error) {
    text += std::string("    ") + error.what() + '\n';
  }
  return text;
}

}  // namespace tutti
