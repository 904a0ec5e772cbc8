#pragma once
// Runs a random program on one rank and compares the results with OneProcess.
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/one_process.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/optimizer.h"

namespace tutti::test {

class ProgramRun {
 public:
  ProgramRun(const Program& program, const Communicator& communicator);

  /// Runs all windows. Fails the test (EXPECT) if parameters or gradients differ from those of one process after a
  /// step.
  void run();

 private:
  void run_window(const ProgramWindow& window);
  void run_scope(const ProgramWindow& window, std::size_t index);
  void run_passes(const ProgramWindow& window, std::size_t index);
  void run_pass(const ProgramPass& pass, bool fails);
  void run_interlude(const ProgramWindow& window, Interlude interlude);
  void finish(const ProgramWindow& window, const std::vector<bool>& steps);
  void halve_gradients(const ProgramWindow& window, int optimizer);
  void clear(int optimizer, Zeroing zeroing);
  void clear_after_fault();
  void save_and_load();
  void evaluate();

  bool fails_here(const ProgramWindow& window, std::size_t scope, Fault::Where where) const;
  at::Tensor loss_of(const Use& use, const at::Tensor& anchor);
  void check_gradients(int optimizer) const;
  void check_parameters() const;
  void check(const std::string& what, const at::Tensor& actual, const at::Tensor& expected) const;
  void make_reducer(int optimizer);
  void connect_parts();

  const Program& program_;
  Communicator communicator_;
  OneProcess one_process_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::shared_ptr<Reducer>> reducers_;
  std::vector<std::shared_ptr<torch::optim::SGD>> inner_;
  std::vector<Optimizer> optimizers_;
  std::vector<bool> stepped_;             // by optimizer: a step has used the gradients
  std::vector<bool> empty_;               // by optimizer: no pass since the gradients were cleared
  std::vector<std::int64_t> last_syncs_;  // by reducer: the count of synchronizations before the last pass
  std::size_t window_ = 0;
  std::size_t scope_ = 0;
  int reducers_made_ = 0;
};

}  // namespace tutti::test
