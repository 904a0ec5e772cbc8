#pragma once
// Runs random moves on one rank, beside what they mean on one process.
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

  /// What was wrong, the same on all ranks; empty if nothing was. After each iteration either parameters are those of
  /// one process on all ranks, or all ranks had an error that the moves explain, and parameters are equal on all.
  std::string run();

  /// How many iterations completed, and how many failed.
  int completed() const { return completed_; }
  int refused() const { return refused_; }

 private:
  struct Model {
    std::vector<at::Tensor> parameters;
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
    at::Tensor values{};  // since it is no longer the parameter's gradient
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
  void record_released_gradients();
  void recover();
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> reference_parameters() const;
  bool one_is_absent() const;
  int times(const Move& pass) const;
  Mean mean_after(const Move& pass, int model) const;
  std::string difference() const;
  std::string difference_between_ranks() const;

  const MoveProgram& program_;
  Communicator status_;  // apart from what is tested
  std::array<Model, 2> models_;
  const Move* scope_ = nullptr;
  const Move* left_out_ = nullptr;  // the absent rank's pass of this scope
  std::array<bool, 2> came_{};      // by model: to a step of this scope
  std::vector<Held> held_;
  std::string found_;       // in the middle of an iteration
  bool must_fail_ = false;  // this iteration, on all ranks
  bool may_fail_ = false;
  int completed_ = 0;
  int refused_ = 0;
};

}  // namespace tutti::test
