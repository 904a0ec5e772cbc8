#pragma once
// Runs random moves on one rank and compares the results with ReferenceModel.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/reference_model.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/optim/optimizer.h"

namespace tutti::test {

class MovesRun {
 public:
  MovesRun(const MoveProgram& program, const Communicator& communicator);

  /// Runs all iterations. Returns the failure, the same on all ranks; empty if all iterations passed. An iteration
  /// passes in two cases:
  /// - No rank had an error, and all ranks' parameters are those of one process.
  /// - All ranks had an error that the moves explain, and parameters are equal on all ranks.
  std::string run();

  /// Number of iterations without an error, and number of iterations with an error on all ranks.
  int completed() const { return completed_; }
  int refused() const { return refused_; }

 private:
  struct Model {
    std::vector<at::Tensor> parameters;
    std::vector<NamedParameter> named{};
    std::shared_ptr<torch::optim::SGD> inner;
    std::shared_ptr<Reducer> reducer;
    std::optional<Optimizer> optimizer;
    std::optional<ReferenceModel> reference;
  };
  /// A gradient that the program holds.
  struct Held {
    int model;
    std::size_t parameter;
    at::Tensor handle;
    at::Tensor values{};  // set when another tensor becomes the parameter's gradient
  };

  std::string run_iteration(const std::vector<Move>& moves);
  std::size_t run_from(const std::vector<Move>& moves, std::size_t first);
  std::size_t run_scope(const std::vector<Move>& moves, std::size_t opening);
  void run_move(const Move& move);
  void run_pass(const Move& pass);
  void record_pass(const Move& pass);
  void zero(const Move& move);
  void zero_behind(const Move& move);
  void clip(const Move& move);
  void clip_behind(const Move& move);
  void replace(const Move& move);
  void keep(const Move& move);
  void resume();
  void make_reducers();
  void record_released_gradients();
  void recover();
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> reference_parameters() const;
  /// True if the model synchronizes with the pass.
  bool takes_part(const Move& pass, int model) const;
  /// True if a pass that reaches one of the models also synchronizes the other one.
  bool joins() const;
  bool one_is_absent() const;
  int times(const Move& pass) const;
  Mean mean_after(const Move& pass, int model) const;
  std::string difference() const;
  std::string difference_between_ranks() const;

  const MoveProgram& program_;
  Communicator communicator_;
  Communicator status_;  // for the test's own communication
  std::array<Model, 2> models_;
  const Move* scope_ = nullptr;
  const Move* left_out_ = nullptr;      // the pass of this scope that the absent rank skips
  bool passed_in_scope_ = false;        // a pass of this scope has reached one of its models
  std::array<bool, 2> came_{};          // by model: true after a step in this scope
  std::array<bool, 2> closed_early_{};  // by model: its last scope was not the last one of a window
  /// By model: LibTorch's zero_grad() has cleared a window. The reducer detects that later, and drops with that window
  /// the weights of scopes whose passes reach the other model only.
  std::array<bool, 2> cleared_behind_{};
  std::vector<Held> held_;
  std::string found_;       // a failure in the middle of an iteration
  bool must_fail_ = false;  // all ranks must have an error in this iteration
  bool may_fail_ = false;
  int completed_ = 0;
  int refused_ = 0;
};

}  // namespace tutti::test
