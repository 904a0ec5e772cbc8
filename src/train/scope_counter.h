#pragma once
// Which accumulate() scopes end a window: every num_steps-th, and the last scope on the last batch of a loop. No I/O.
//
// A batch may be used in several scopes: micro-batches cut from it, or several losses. The scope that opens on the last
// batch does not show whether another one follows. The number is taken from the last batch of the previous loop over
// the same loader, or from the earlier batches of this loop. Both are equal on all ranks, because all ranks open the
// same scopes. If there are none, or if the earlier batches differ, the number is unknown, and each scope on the last
// batch ends a window.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tutti/detail/data/loader_position.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// The scopes of one reducer.
class ScopeCounter {
 public:
  struct Rule {
    std::int64_t num_steps = 1;        ///< scopes of a window
    bool sync_with_dataloader = true;  ///< a window ends with the data
  };

  /// Number of scopes since the last window's end.
  std::int64_t scopes() const { return scopes_; }
  /// Whether a scope that opens at `position` ends its window.
  bool ends_window(const LoaderPosition& position, const Rule& rule) const;
  /// Whether an earlier scope on the same last batch has ended its window because the data seemed to end with it, so
  /// that a scope which opens now ends a window that should not exist.
  bool ends_too_many(const LoaderPosition& position, const Rule& rule) const;
  /// A scope has opened at `position`.
  void open(const LoaderPosition& position, const Rule& rule);
  /// Whether the loop at `position`, which has ended, leaves a window of its scopes open.
  bool left_open_by(const LoaderPosition& position, const Rule& rule) const;
  /// The next scope is the first of a window.
  void restart_window() { scopes_ = 0; }

  /// The counts of all reducers, for a checkpoint of `world_size` ranks.
  static StateDict save(std::span<const ScopeCounter> counters, int world_size);
  /// The counters on `world_size` ranks for windows of `num_steps` scopes. A window over batches that are split over
  /// the ranks continues at the same scope, any other at the scope up to which the ranks have used as many
  /// micro-batches. Throws CheckpointError unless the state has `count` reducers.
  static std::vector<ScopeCounter> load(const StateDict& state, std::size_t count, int world_size,
                                        std::int64_t num_steps);

 private:
  static constexpr std::int64_t unknown = 0;
  static constexpr std::int64_t varies = -1;

  bool same_loop(const LoaderPosition& position) const { return position.loop == loop_; }
  bool continues_loader(const LoaderPosition& position) const {
    return resumed_ || (!position.loader.owner_before(loader_) && !loader_.owner_before(position.loader));
  }
  /// The number of a scope that opens at `position` among those on its batch, from 1.
  std::int64_t number_on_batch(const LoaderPosition& position) const;
  /// Number of scopes on each earlier batch of the loop at `position`: `unknown` if there is none.
  std::int64_t scopes_per_batch(const LoaderPosition& position) const;
  /// Number of scopes on the last batch of the previous loop over the loader, or `unknown`.
  std::int64_t scopes_on_previous_end(const LoaderPosition& position) const;
  /// Number of scopes on the last batch of the loop at `position`; 1 if it is not known.
  std::int64_t expected_on_last_batch(const LoaderPosition& position) const;

  std::int64_t scopes_ = 0;
  bool split_ = false;  // the window's last scope was on a batch that is split over the ranks
  // Of the loop with the last scope.
  std::weak_ptr<const void> loader_;
  std::int64_t loop_ = 0;
  std::int64_t batch_ = 0;
  std::int64_t on_batch_ = 0;            // scopes on that batch
  bool on_last_batch_ = false;           // that batch is the loop's last
  std::int64_t per_batch_ = unknown;     // scopes on each of the loop's earlier batches
  std::int64_t previous_end_ = unknown;  // scopes on the last batch of the loader's previous loop
  bool resumed_ = false;                 // the counts are those of a checkpoint, and the next loop continues its loop
};

}  // namespace tutti
