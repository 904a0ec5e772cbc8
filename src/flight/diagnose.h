#pragma once
// Diagnosis of a job from the flight records of its ranks: which ranks wait, which did not enter the call, and the
// first operation that differs. No I/O.
#include <cstdint>
#include <string>
#include <vector>

#include "flight/rank_record.h"

namespace tutti::flight {

/// Returns a few lines of text. `now`: nanoseconds since 1970. If all processes have ended, the last time in the
/// records is used instead.
std::string diagnose(const std::vector<RankRecord>& records, std::int64_t now);

/// True if a call has failed and its communicator has run no call since. A MismatchError that the program catches
/// leaves a communicator usable.
bool has_failed_call(const RankRecord& record);

/// The last `count` operations of a rank, one per line, in the order of their calls.
std::string last_operations(const RankRecord& record, std::size_t count, std::int64_t now);

/// The reference of "ago": `now`, or the last time in the records if no process runs.
std::int64_t reference_time(const std::vector<RankRecord>& records, std::int64_t now);

}  // namespace tutti::flight
