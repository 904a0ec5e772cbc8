#include "flight/diagnose.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "flight/wait_graph.h"

namespace tutti::flight {
namespace {

constexpr double nanoseconds = 1e9;
constexpr std::size_t max_ranks_named = 16;

// "rank 3", "ranks 0, 2 and 5"
std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), max_ranks_named);
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string seconds(std::int64_t duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(std::max<std::int64_t>(duration, 0)) / nanoseconds);
  return text;
}

/// Source lines of the program; empty if unknown.
using CallSites = std::set<std::string>;

std::string join(const CallSites& call_sites) {
  std::string text;
  for (const auto& call_site : call_sites) {
    if (!call_site.empty()) text += (text.empty() ? "" : " and ") + call_site;
  }
  return text;
}

std::string describe(const RecordedOperation& operation, const CallSites& call_sites) {
  std::string text =
      operation.text + " (operation " + std::to_string(operation.operation) + " of " + operation.communicator;
  if (operation.step >= 0) text += ", step " + std::to_string(operation.step);
  const std::string lines = join(call_sites);
  return text + (lines.empty() ? "" : ", " + lines) + ")";
}

std::string describe(const RecordedOperation& operation) {
  return describe(operation, {operation.call_site});
}

std::int64_t last_time(const RecordedOperation& operation) {
  return std::max({operation.called, operation.started, operation.ended});
}

/// The operations on one communicator, of every rank that has a record.
struct CommunicatorRecords {
  std::map<int, std::vector<const RecordedOperation*>> by_rank;
  int group_size = 1;
};

std::map<std::string, CommunicatorRecords> communicators_of(const std::vector<RankRecord>& records) {
  std::map<std::string, CommunicatorRecords> communicators;
  for (const auto& record : records) {
    for (const auto& operation : record.operations) {
      auto& communicator = communicators[operation.communicator];
      communicator.by_rank[record.rank].push_back(&operation);
      communicator.group_size = std::max(communicator.group_size, operation.group_size);
    }
  }
  for (auto& [name, communicator] : communicators) {
    for (auto& [rank, operations] : communicator.by_rank) {
      std::ranges::stable_sort(operations, {}, [](const RecordedOperation* one) { return one->operation; });
    }
  }
  return communicators;
}

std::vector<int> ranks_of(const std::vector<RankRecord>& records) {
  std::set<int> ranks;
  for (const auto& record : records) ranks.insert(record.rank);
  return {ranks.begin(), ranks.end()};
}

// A process may have several records. One of a group that the process has destroyed shows no running process.
bool is_running(int rank, const std::vector<RankRecord>& records) {
  return std::ranges::any_of(records, [&](const RankRecord& record) { return record.rank == rank && record.running; });
}

// Which processes run, and which records are missing: "4 ranks; all processes run.\nNo record here of rank 2.\n"
std::string process_summary(const std::vector<RankRecord>& records) {
  const int size = records.front().world_size;
  const auto present = ranks_of(records);
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!std::ranges::binary_search(present, rank)) missing.push_back(rank);
  }
  std::set<int> running, ended;
  for (const int rank : present) (is_running(rank, records) ? running : ended).insert(rank);
  std::string text = std::to_string(size) + (size == 1 ? " rank" : " ranks");
  if (running.empty()) {
    text += present.size() == 1 ? "; the process has ended.\n" : "; all processes have ended.\n";
  } else if (ended.empty()) {
    text += running.size() == 1 ? "; the process runs.\n" : "; all processes run.\n";
  } else {
    text += "; the processes of " + name_ranks({ended.begin(), ended.end()}) + " have ended, those of " +
            name_ranks({running.begin(), running.end()}) + " run.\n";
  }
  if (!missing.empty()) text += "No record here of " + name_ranks(missing) + ".\n";
  return text;
}

std::string describe_last(int rank, const CommunicatorRecords& communicator, std::int64_t now) {
  const auto found = communicator.by_rank.find(rank);
  if (found == communicator.by_rank.end())
    return capitalized(name_ranks({rank})) + " has called no operation of its communicator.\n";
  const auto& last = *found->second.back();
  std::string text = capitalized(name_ranks({rank})) + " last called " + describe(last) + ", ";
  if (last.state == EntryState::completed) return text + "done " + seconds(now - last.ended) + " ago.\n";
  if (last.state == EntryState::failed) return text + "which failed " + seconds(now - last.ended) + " ago.\n";
  return text + seconds(now - last.called) + " ago, and has not finished it.\n";
}

/// The first operation on a communicator that some ranks have started and not all have completed.
struct BlockedOperation {
  const RecordedOperation* operation = nullptr;  // of the rank that waits longest
  std::vector<int> waiting_ranks{};
  std::vector<int> exited{};  // in it
  std::vector<int> late{};    // called it after others had timed out
  std::vector<int> absent{};  // have not called it
  CallSites call_sites{};     // where it was called
};

/// The failed calls of one rank on one communicator, without those that left it usable, such as a MismatchError that
/// the program caught: a call that was made later has not failed.
class Failures {
 public:
  explicit Failures(const std::vector<const RecordedOperation*>& operations) {
    for (const auto* one : operations) {
      const bool is_usable = one->state == EntryState::started || one->state == EntryState::completed;
      if (is_usable) last_usable_ = std::max(last_usable_, one->called);
    }
    for (const auto* one : operations) {
      if (contains(*one)) first_ended_ = std::min(first_ended_, one->ended);
    }
  }
  bool contains(const RecordedOperation& one) const {
    return one.state == EntryState::failed && one.ended >= last_usable_;
  }
  /// Whether the call was made after one of them.
  bool precede(const RecordedOperation& one) const { return one.called > first_ended_; }

 private:
  std::int64_t last_usable_ = 0;
  std::int64_t first_ended_ = std::numeric_limits<std::int64_t>::max();
};

/// By rank, those that have not finished the first operation that some rank has not finished.
std::map<int, const RecordedOperation*> unfinished_in(const CommunicatorRecords& communicator) {
  std::map<int, const RecordedOperation*> first;
  for (const auto& [rank, operations] : communicator.by_rank) {
    // Failed ones waited too, until they timed out.
    const auto open = std::ranges::find_if(operations, [failures = Failures(operations)](const auto* one) {
      return one->state == EntryState::started || failures.contains(*one);
    });
    if (open == operations.end()) continue;
    if (!first.empty() && (*open)->operation > first.begin()->second->operation) continue;
    if (!first.empty() && (*open)->operation < first.begin()->second->operation) first.clear();
    first.emplace(rank, *open);
  }
  return first;
}

/// When the first of them timed out; never if none has.
std::int64_t first_failure(const std::map<int, const RecordedOperation*>& open) {
  auto end = std::numeric_limits<std::int64_t>::max();
  for (const auto& [rank, one] : open) {
    if (one->state == EntryState::failed) end = std::min(end, one->ended);
  }
  return end;
}

/// The number of calls of each rank that has a record and belongs to the communicator.
std::map<int, std::uint64_t> calls_by_rank(const CommunicatorRecords& communicator,
                                           const std::vector<RankRecord>& records) {
  const bool has_all_ranks = communicator.group_size == records.front().world_size;
  std::map<int, std::uint64_t> calls;
  for (const int rank : ranks_of(records)) {
    const auto operations = communicator.by_rank.find(rank);
    if (operations != communicator.by_rank.end()) {
      calls[rank] = operations->second.back()->operation + 1;
    } else if (has_all_ranks) {
      calls[rank] = 0;
    }
  }
  return calls;
}

std::optional<BlockedOperation> find_blocked(const CommunicatorRecords& communicator,
                                             const std::vector<RankRecord>& records) {
  const auto open = unfinished_in(communicator);
  if (open.empty()) return std::nullopt;
  const auto failed_at = first_failure(open);
  // Of those that timed out, or of all if none has, who called first.
  const auto by_wait = [](const auto& one) {
    return std::pair(one.second->state != EntryState::failed, one.second->called);
  };
  BlockedOperation found{.operation = std::ranges::min_element(open, {}, by_wait)->second};
  for (const auto& [rank, one] : open) {
    found.call_sites.insert(one->call_site);
    if (one->state == EntryState::started && !is_running(rank, records)) {
      found.exited.push_back(rank);
    } else {
      (one->called > failed_at ? found.late : found.waiting_ranks).push_back(rank);
    }
  }
  found.absent = ranks_without_call(calls_by_rank(communicator, records), found.operation->operation);
  return found;
}

std::string describe_blocked(const BlockedOperation& blocked, const CommunicatorRecords& communicator,
                             std::int64_t now) {
  const auto& operation = *blocked.operation;
  const std::string what = describe(operation, blocked.call_sites);
  const bool failed = operation.state == EntryState::failed;
  std::string text;
  if (!blocked.exited.empty()) {
    text += capitalized(name_ranks(blocked.exited)) + " ended inside " + what + ".\n";
  }
  if (!blocked.waiting_ranks.empty() && failed) {
    text += capitalized(name_ranks(blocked.waiting_ranks)) + " failed in " + what + " after " +
            seconds(operation.ended - operation.called) + ".\n";
  } else if (!blocked.waiting_ranks.empty()) {
    text += capitalized(name_ranks(blocked.waiting_ranks)) +
            (blocked.waiting_ranks.size() == 1 ? " is in " : " are in ") + what + " for " +
            seconds(now - operation.called) + ".\n";
  }
  if (!blocked.late.empty()) text += capitalized(name_ranks(blocked.late)) + " entered the call only after that.\n";
  if (blocked.absent.empty()) return text;
  text += capitalized(name_ranks(blocked.absent));
  text += failed ? " never entered the call.\n" : " did not enter the call.\n";
  for (std::size_t i = 0; i < std::min(blocked.absent.size(), max_ranks_named); ++i) {
    text += describe_last(blocked.absent[i], communicator, now);
  }
  return text;
}

/// The first operation number at which ranks called different operations, before their calls failed; empty if the
/// records show none.
std::string first_difference(const std::string& name, const CommunicatorRecords& communicator) {
  struct Callers {
    std::vector<int> ranks;
    CallSites call_sites;
  };
  std::map<std::uint64_t, std::map<std::string, Callers>> calls;  // by number and text
  for (const auto& [rank, operations] : communicator.by_rank) {
    const Failures failures(operations);
    for (const auto* one : operations) {
      if (failures.precede(*one)) continue;
      auto& callers = calls[one->operation][one->text];
      callers.ranks.push_back(rank);
      callers.call_sites.insert(one->call_site);
    }
  }
  for (const auto& [number, texts] : calls) {
    if (texts.size() < 2) continue;
    std::string text = "First difference: operation " + std::to_string(number) + " of " + name + " is ";
    for (auto it = texts.begin(); it != texts.end(); ++it) {
      if (it != texts.begin()) text += std::next(it) == texts.end() ? " and " : ", ";
      const auto& [ranks, call_sites] = it->second;
      text += it->first + " on " + name_ranks(ranks);
      if (const std::string lines = join(call_sites); !lines.empty()) text += " (" + lines + ")";
    }
    return text + ".\n";
  }
  return "";
}

}  // namespace

bool has_failed_call(const RankRecord& record) {
  return std::ranges::any_of(communicators_of({record}), [&](const auto& communicator) {
    const auto& operations = communicator.second.by_rank.at(record.rank);
    const Failures failures(operations);
    return std::ranges::any_of(operations, [&](const auto* one) { return failures.contains(*one); });
  });
}

std::int64_t reference_time(const std::vector<RankRecord>& records, std::int64_t now) {
  std::int64_t last = 0;
  for (const auto& record : records) {
    if (record.running) return now;
    for (const auto& operation : record.operations) last = std::max(last, last_time(operation));
  }
  return last;
}

std::string diagnose(const std::vector<RankRecord>& records, std::int64_t now) {
  if (records.empty()) return "The ranks are still starting: no flight record is complete.\n";
  now = reference_time(records, now);
  std::string text = process_summary(records);
  std::string findings;
  std::vector<std::tuple<std::int64_t, std::string, const CommunicatorRecords*, BlockedOperation>>
      blocked_operations;  // sorted, longest wait first
  const auto communicators = communicators_of(records);
  for (const auto& [name, communicator] : communicators) {
    if (auto blocked = find_blocked(communicator, records)) {
      blocked_operations.emplace_back(blocked->operation->called, name, &communicator, std::move(*blocked));
    }
  }
  std::ranges::sort(blocked_operations, {}, [](const auto& wait) { return std::get<0>(wait); });
  for (const auto& [since, name, communicator, blocked] : blocked_operations)
    findings += describe_blocked(blocked, *communicator, now);
  for (const auto& [name, communicator] : communicators) findings += first_difference(name, communicator);
  if (!findings.empty()) return text + findings;

  const RecordedOperation* last = nullptr;
  for (const auto& record : records) {
    for (const auto& operation : record.operations) {
      if (last == nullptr || last_time(operation) > last_time(*last)) last = &operation;
    }
  }
  if (last == nullptr) return text + "No rank has called an operation.\n";
  return text + "No rank waits for another. The last operation: " + describe(*last) + ", " +
         seconds(now - last_time(*last)) + " ago.\n";
}

std::string last_operations(const RankRecord& record, std::size_t count, std::int64_t now) {
  std::string text = capitalized(name_ranks({record.rank})) + " (" + record.program + ", process " +
                     std::to_string(record.process) + " on " + record.host + (record.running ? "" : ", ended") + "):\n";
  const std::size_t first = record.operations.size() - std::min(count, record.operations.size());
  for (std::size_t i = first; i < record.operations.size(); ++i) {
    const auto& operation = record.operations[i];
    text += "  " + describe(operation);
    if (operation.bytes > 0) text += ", " + std::to_string(operation.bytes) + " bytes";
    text += ", called " + seconds(now - operation.called) + " ago, ";
    const auto took = [&] { return seconds(operation.ended - operation.called); };
    switch (operation.state) {
      case EntryState::scheduled:
        text += "scheduled";
        break;
      case EntryState::started:
        text += "in flight";
        break;
      case EntryState::completed:
        text += "done after " + took();
        break;
      case EntryState::failed:
        text += "failed after " + took();
        break;
    }
    text += "\n";
  }
  return text;
}

}  // namespace tutti::flight
