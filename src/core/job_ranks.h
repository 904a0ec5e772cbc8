#pragma once
// The numbers that ranks of a group have in the job. Texts of errors and log lines name ranks by them.
#include <memory>
#include <string>
#include <vector>

namespace tutti {

/// A small value: copies share the numbers.
class JobRanks {
 public:
  /// Of a group whose ranks have the same numbers in the job.
  JobRanks() = default;
  /// `by_rank`: the number in the job of each rank of the group.
  explicit JobRanks(std::vector<int> by_rank);

  int of(int rank) const { return numbers_ ? numbers_->by_rank.at(static_cast<std::size_t>(rank)) : rank; }
  /// "rank 3", "ranks 2, 3": the ranks of the group, ascending by their numbers in the job.
  std::string describe(std::vector<int> ranks) const;
  /// " of the group of ranks 2, 3"; empty if the ranks have the same numbers in the job.
  std::string describe_group() const { return numbers_ ? numbers_->group : ""; }

 private:
  struct Numbers {
    std::vector<int> by_rank;
    std::string group;  // made once, because every message of a group has it in its description
  };
  std::shared_ptr<const Numbers> numbers_;  // null if the numbers are the same
};

}  // namespace tutti
