#pragma once
// What the flight records of a job's ranks say together: who was missing, where the others stood, what was different
// first. Pure.
#include <cstdint>
#include <string>
#include <vector>

#include "flight/rank_record.h"

namespace tutti::flight {

/// A few lines of text. `now`: nanoseconds since 1970; for a job whose processes have all ended the last time that
/// stands in a record counts instead.
std::string diagnose(const std::vector<RankRecord>& records, std::int64_t now);

/// The last `count` operations of a rank, one a line, the last one last.
std::string last_operations(const RankRecord& record, std::size_t count, std::int64_t now);

/// The time that "ago" counts from: `now`, or the last time in the records where no process runs any more.
std::int64_t reference_time(const std::vector<RankRecord>& records, std::int64_t now);

}  // namespace tutti::flight
