#pragma once
// Finding out who is at fault. A rank whose operation fails only knows whom it was waiting for, and that rank may have
// left because of a third one. So each failing rank posts where it stood, then follows the posts to a rank that has
// none (dead, or somewhere else in its program).
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine/transfer.h"

namespace tutti::comm {

/// Where a rank stood when it left the group.
struct Standing {
  enum class Reason { timeout, closed, abandoned, stopped, silent, left, ended };
  Reason reason = Reason::timeout;
  std::uint64_t operation = 0;
  std::chrono::milliseconds timeout{0};  ///< how long it has waited
  std::vector<int> waiting_for;
  std::string where;  ///< "all_reduce 'loss' (operation 17)"

  /// Whether it stopped waiting for ranks that may still come.
  bool gave_up() const { return reason == Reason::timeout || reason == Reason::stopped || reason == Reason::silent; }
  /// Whether it found those that it waited for to be away.
  bool found_nobody() const { return reason == Reason::closed || reason == Reason::left || reason == Reason::ended; }
  /// Whether those that it waited for can leave no word any more.
  bool is_certain() const {
    return reason != Reason::timeout && reason != Reason::closed && reason != Reason::abandoned;
  }

  std::string to_text() const;
  static Standing from_text(const std::string& text);
};
using Standings = std::vector<std::optional<Standing>>;  // by rank

/// A post as it stands in a list that all ranks append to.
std::string to_entry(int rank, const std::string& text);
/// By rank what `entries` holds, the last word of each; entries that no rank of `size` can have written are left out.
std::vector<std::optional<std::string>> posts_in(const std::string& entries, int size);

struct Verdict {
  std::vector<int> culprits;  ///< ascending
  bool timed_out = false;     ///< they did not arrive or are stopped, as opposed to: their connection was closed
  std::string message;
};

/// Pure: what `rank` says given what all ranks posted. Its own standing must be there.
Verdict judge(const Standings& standings, int rank);

/// Whether `standings` has a post of every rank that someone (starting from `rank`) waits for, and that can still post.
/// Those in `ended` cannot, nor can those of whom a rank knows that their processes have ended.
bool is_complete(const Standings& standings, int rank, const std::vector<int>& ended = {});

/// Posts where this rank stands (at once), then lets look what the others posted (for at most about a second; hardly at
/// all where other machines are silent, for the store may be on one of them).
class Inquiry {
 public:
  Inquiry(std::shared_ptr<Bulletin> bulletin, int rank, int size, Standing own);
  ~Inquiry();
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;

  /// Returns when this rank's post was handed over, or could not be in time.
  void wait_until_posted();
  Verdict verdict();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  /// Whether `done` was seen in time. The shorter patience holds once the bulletin is known not to answer.
  template <typename Done>
  bool wait(const Done& done);

  std::shared_ptr<Bulletin> bulletin_;
  std::thread thread_;
  int rank_;
  int size_;
  int holder_;
  Deadline begun_ = Clock::now();
  Standing own_;
};

}  // namespace tutti::comm
