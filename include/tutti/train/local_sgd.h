#pragma once
// Local SGD: every rank steps its own copy of the model, and the copies are averaged every few optimizer steps instead
// of gradients in each. Names and use are Accelerate's:
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
// Little", ICLR 2019. The methods that came after it are options: see local_sgd_algorithm_options.h.
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "tutti/local_sgd/local_sgd_algorithm.h"
#include "tutti/train/accelerator.h"

namespace tutti {

/// What a LocalSGD is told. Every rank gives the same.
struct LocalSGDOptions {
  /// Optimizer steps between two averages. It is the algorithm's local_steps.
  std::int64_t local_sgd_steps = 8;
  /// Off: nothing changes, gradients are synchronized as ever.
  bool enabled = true;
  /// Outer optimizer, wire format and the rest.
  LocalSgdAlgorithmOptions algorithm{};
};

/// Every rank makes one, on the same prepared model, between optimizer steps. While it lives, gradients of the model
/// stay each rank's own: accumulation, clipping, schedules and mixed precision act on this rank's windows (under fp16
/// each rank skips its own steps). Optimizer state stays local unless StateSync says otherwise. It is saved
/// and loaded with the Accelerator, on the same number of ranks: make it before load_state(). One thread.
/// `where` is filled in by the compiler.
class LocalSGD {
 public:
  /// From now on gradients of `model` stay each rank's own. Throws UsageError for options that cannot be honoured and a
  /// model that is not prepared.
  LocalSGD(Accelerator& accelerator,  // misspelt? LocalSGDOptions{...} names it
           const detail::model_argument auto& model, const LocalSGDOptions& options = {})
      : LocalSGD(accelerator, detail::module_of(model), options) {}
  /// The same for a module.
  LocalSGD(Accelerator& accelerator, const torch::nn::Module& model, const LocalSGDOptions& options);
  /// finish(), unless an exception unwinds: then nothing is communicated. It may throw what finish() throws: inside
  /// std::optional, std::unique_ptr or a class whose destructor does not say noexcept(false) that ends the process.
  /// Call finish() before, and nothing is left to throw.
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  /// After optimizer.step(), also in loops where only some micro-batches step: what counts is optimizer steps.
  /// `weight`: what the step was worth on this rank (tokens, samples). Throws what the algorithm throws.
  void step(double weight = 1, const CallSite& where = CallSite::here());
  /// Averages what has not been averaged, and gradients are synchronized again. The model's optimizers go on with rank
  /// 0's state and options on all ranks (under MomentumRule::average the momentum is the mean by then), so that
  /// synchronous steps may follow. Called twice it does nothing. Throws UsageError on all ranks for an optimizer whose
  /// state LibTorch cannot write: prepare a new one then.
  void finish(const CallSite& where = CallSite::here());

  /// Rounds, bytes and stalls; zeros where it is not enabled.
  LocalSgdStats stats() const { return algorithm_ ? algorithm_->stats() : last_stats_; }

 private:
  class SavedPart;

  std::int64_t optimizer_steps() const;
  void set_local(bool local);
  void replicate_optimizers();
  void replicate_scale_and_schedules();

  Accelerator& accelerator_;
  std::vector<std::shared_ptr<Reducer>> reducers_;
  std::shared_ptr<LocalSgdAlgorithm> algorithm_;  // null: not enabled, or finished
  std::shared_ptr<SavedPart> saved_;              // what a checkpoint holds of this
  LocalSgdStats last_stats_{};
  // The reducers' steps when the algorithm had seen none: they begin anew where gradients cease to be synchronized.
  std::int64_t steps_before_ = 0;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tutti
