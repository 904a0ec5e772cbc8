#pragma once
// Local SGD: every rank steps its own replica of the model, and replicas are averaged every few optimizer steps,
// instead of gradients in every step. Names and use are Accelerate's:
//
//   tutti::LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 8});
//   for (auto& batch : loader) {
//     auto window = accelerator.accumulate(model);
//     ...backward, step, zero_grad...
//     local_sgd.step();
//   }
//   local_sgd.finish();
//
// Zhang et al., "Parallel SGD: When does averaging help?", 2016; Stich, "Local SGD Converges Fast and Communicates
// Little", ICLR 2019. Later methods are options: see local_sgd_algorithm_options.h.
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "tutti/detail/local_sgd/local_sgd_algorithm.h"
#include "tutti/train/accelerator.h"

namespace tutti {

/// Options of LocalSGD. Every rank must pass the same.
struct LocalSGDOptions {
  /// Optimizer steps between two averages; the algorithm's local_steps.
  std::int64_t local_sgd_steps = 8;
  /// False: LocalSGD has no effect, and gradients are synchronized in every step.
  bool enabled = true;
  /// Outer optimizer, wire format and other options of the algorithm.
  LocalSgdAlgorithmOptions algorithm{};
};

/// Every rank must create one for the same prepared model, between optimizer steps. Until finish() the model's
/// gradients are not synchronized: accumulation, clipping, schedules and mixed precision act on this rank's windows.
/// Under fp16 each rank skips its own steps, and the loss scale belongs to all models of the Accelerator, so no other
/// one can synchronize meanwhile. Optimizer state stays local unless StateSync is set. The Accelerator saves and loads
/// the state of LocalSGD, on the same number of ranks: create LocalSGD before load_state(). Not thread safe. The
/// compiler fills in `where`.
class LocalSGD {
 public:
  /// Stops the synchronization of the gradients of `model`. Throws UsageError for options that contradict one another,
  /// for a model that is not prepared, and in a scope of join_uneven_inputs().
  LocalSGD(Accelerator& accelerator, detail::ModelRef model, const LocalSGDOptions& options = {});
  /// Calls finish(), unless an exception unwinds; then no rank communicates, ranks keep different parameters, and the
  /// Accelerator refuses to train or save the model until free_memory(). Throws as finish() does, which terminates the
  /// process inside std::optional, std::unique_ptr or a class whose destructor is noexcept. After finish() the
  /// destructor does not throw.
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  /// Must be called after optimizer.step(), with several optimizers after the step of the last one: a round writes all
  /// parameters and buffers. Calls after a micro-batch before the last one of its window have no effect. A rank that
  /// leaves out its optimizer step, for example for a loss that is not finite, must call zero_grad() instead, inside
  /// accumulate(); then the call counts as on the other ranks. So does a call in a window's last scope without a
  /// backward pass; it discards the window's earlier passes, unless optimizer.step() has used them. Without
  /// accumulate() only calls after an optimizer step count. `weight`: the weight of this rank's step (tokens, samples).
  /// Throws as LocalSgdAlgorithm::step() does.
  void step(double weight = 1, const CallSite& where = CallSite::here());
  /// Averages the steps since the last average, and turns gradient synchronization on again. Every rank must call it,
  /// between optimizer steps. Discards gradients that no step has used, such as those of an unfinished window.
  /// The model's optimizers get rank 0's state and options on all ranks, so that synchronous steps may follow. Under
  /// MomentumRule::average the momentum has been averaged before. A second call has no effect, nor has step() then.
  /// Throws UsageError on all ranks for an optimizer whose state LibTorch cannot write: prepare a new optimizer in that
  /// case.
  void finish(const CallSite& where = CallSite::here());

  /// Rounds, bytes and stalls; all zero if LocalSGD is not enabled.
  LocalSgdStats stats() const { return algorithm_ ? algorithm_->stats() : last_stats_; }

 private:
  class SavedPart;

  std::int64_t optimizer_steps() const;
  std::int64_t ended_windows() const;
  /// True if a window has ended since the last counted call, without a step, and zero_grad() has cleared it or its last
  /// scope has had no backward pass.
  bool left_out_step() const;
  void discard_unused_passes();
  void begin_local_steps();
  void set_local(bool local);
  void replicate_step_counts();
  void replicate_optimizers();
  void replicate_scale_and_schedules();

  Accelerator& accelerator_;
  std::vector<std::shared_ptr<Reducer>> reducers_;
  std::shared_ptr<Optimizer> optimizer_;          // null, unless one optimizer trains the whole model
  std::shared_ptr<LocalSgdAlgorithm> algorithm_;  // null: not enabled, or finished
  std::shared_ptr<SavedPart> saved_;              // the part of checkpoints that holds the algorithm's state
  LocalSgdStats last_stats_{};
  std::vector<std::int64_t> steps_before_;  // the reducers' step counts at the algorithm's step 0
  std::int64_t ended_windows_ = 0;          // ended_windows() at the last counted call
  bool warns_of_step_ = false;              // finish() has run, and no step() since
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tutti
