#pragma once
// The annotations of the training loop: the columns of Accelerate's table, and a loop without annotation.
#include <array>
#include <string>

namespace tutti::bench {

enum class Mode {
  baseline,           ///< synchronizes in every pass
  no_sync_misplaced,  ///< no_sync around backward only, a common mistake
  no_sync,            ///< no_sync around forward and backward, except in the last pass of a window
  accumulate,         ///< the accumulate() scope
  automatic,          ///< no annotation
};

inline constexpr std::array all_modes{Mode::baseline, Mode::no_sync_misplaced, Mode::no_sync, Mode::accumulate,
                                      Mode::automatic};

inline std::string name_of(Mode mode) {
  switch (mode) {
    case Mode::baseline:
      return "baseline";
    case Mode::no_sync_misplaced:
      return "no_sync misplaced";
    case Mode::no_sync:
      return "no_sync";
    case Mode::accumulate:
      return "accumulate";
    case Mode::automatic:
      return "automatic";
  }
  return "";
}

}  // namespace tutti::bench
