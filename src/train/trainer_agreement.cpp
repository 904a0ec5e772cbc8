// What the ranks of a Trainer compare when a run begins.
#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

#include "tracking/printed.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/train/objects.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

/// Options that differ would make ranks wait for one another in different calls.
void TrainerContext::require_same_options() const {
  const Scalars own{{"max_epochs", static_cast<double>(options_.max_epochs.value_or(-1))},
                    {"max_steps", static_cast<double>(options_.max_steps.value_or(-1))},
                    {"log_every", static_cast<double>(options_.log_every)},
                    {"evaluate_every", static_cast<double>(options_.evaluate_every.count())},
                    {"evaluate_every.in_epochs()", options_.evaluate_every.in_epochs() ? 1.0 : 0.0},
                    {"save_every", static_cast<double>(options_.save_every.count())},
                    {"save_every.in_epochs()", options_.save_every.in_epochs() ? 1.0 : 0.0},
                    {"resume", options_.resume ? 1.0 : 0.0}};
  const auto of_ranks =
      accelerator_.communicator().all_gather_object(pack(own), comm::internal_call("options of the Trainer"));
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const auto there = unpack<Scalars>(of_ranks[rank]);
    const auto first = unpack<Scalars>(of_ranks[0]);
    for (std::size_t place = 0; place < own.size(); ++place) {
      if (first[place] == there[place]) continue;
      throw MismatchError("TrainerOptions::" + own[place].first + " is " + printed("%g", first[place].second) +
                          " on rank 0 and " + printed("%g", there[place].second) + " on rank " + std::to_string(rank) +
                          ": pass the same options on all ranks (-1: unset)");
    }
  }
}

void TrainerContext::require_same_callbacks() const {
  std::string own;
  for (const auto& callback : callbacks_) {
    own += (own.empty() ? "" : ", ") + c10::demangle(typeid(*callback).name());
  }
  const auto of_ranks =
      accelerator_.communicator().all_gather_object(own, comm::internal_call("callbacks of the Trainer"));
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank] == of_ranks[0]) continue;
    const auto list = [&](std::size_t of) { return of_ranks[of].empty() ? "none" : of_ranks[of]; };
    throw MismatchError("Trainer: the callbacks of rank 0 are " + list(0) + ", and those of rank " +
                        std::to_string(rank) + " are " + list(rank) +
                        ": add the same ones in the same order on all ranks");
  }
}

}  // namespace tutti
