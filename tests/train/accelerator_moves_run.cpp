#include "train/accelerator_moves_run.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>

#include <sstream>
#include <utility>

#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test {

namespace {

constexpr double learning_rate = 0.05;

std::vector<at::Tensor> trained(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

double largest_norm(const TrainingMove& clip) {
  return 0.05 * static_cast<double>(1 + clip.seed % 5);
}

double rate_of(const TrainingMove& move) {
  return 0.01 * static_cast<double>(1 + move.seed % 5);
}

at::Tensor samples_of(const TrainingMove& forward, int rank) {
  return random_tensor({5, 3}, forward.seed + static_cast<std::uint64_t>(rank), at::kDouble);
}

}  // namespace

PartImpl::PartImpl(std::uint64_t seed, bool is_complex)
    : in_(register_module("in", torch::nn::Linear(3, 4))),
      norm_(register_module("norm", torch::nn::BatchNorm1d(4))),
      out_(register_module("out", torch::nn::Linear(4, 1))) {
  to(at::kDouble);
  late_ = register_parameter("late", at::zeros({4}, at::kDouble), /*requires_grad=*/false);
  if (is_complex) complex_ = register_parameter("complex", at::zeros({3}, at::kComplexDouble));
  fill(*this, seed);
}

at::Tensor PartImpl::forward(const at::Tensor& samples) {
  at::Tensor hidden = norm_(in_(samples)) * (1 + late_);
  for (const at::Tensor& added : added_) hidden = hidden + added * hidden.tanh();
  at::Tensor result = out_(hidden).tanh().mean();
  if (complex_.defined()) {
    const at::Tensor factors = at::complex(samples[0], samples[1]);
    result = result + at::real((complex_.conj() * factors).sum()) + at::imag(complex_.conj()).pow(2).sum();
  }
  return result;
}

at::Tensor PartImpl::add_layer() {
  const std::string name = "added" + std::to_string(added_.size());
  return added_.emplace_back(register_parameter(name, at::full({4}, 0.1, at::kDouble)));
}

at::Tensor PartImpl::unfreeze() {
  return late_.requires_grad_();
}

PartsImpl::PartsImpl(const TrainingProgram& program) {
  for (int i = 0; i < 2; ++i) {
    parts_[i] = register_module(i == 0 ? "first" : "second",
                                Part(program.seed + 10 * static_cast<std::uint64_t>(i), program.is_complex));
  }
}

std::array<at::Tensor, 2> PartsImpl::losses(const at::Tensor& samples) {
  const at::Tensor first = parts_[0](samples);
  return {first, parts_[1](samples + first.detach())};
}

TrainingRun::TrainingRun(const TrainingProgram& program, const Communicator& communicator)
    : program_(program), communicator_(communicator), status_(communicator.duplicate("status")), model_(program) {
  for (int rank = 0; rank < program.ranks; ++rank) replicas_.push_back({.model = Parts(program)});
  start();
  for (int part = 0; part < 2; ++part) {
    replica_sgd_[part] = std::make_shared<torch::optim::SGD>(trained(*replicas_[0].model->part(part)), learning_rate);
  }
  prepare();
}

TrainingRun::~TrainingRun() = default;

void TrainingRun::start() {
  accelerator_ = std::make_unique<Accelerator>(AcceleratorOptions{.sync_policy = program_.policy,
                                                                  .buckets = program_.buckets,
                                                                  .buffer_sync = program_.buffer_sync,
                                                                  .communicator = communicator_});
  for (int part = 0; part < 2; ++part)
    sgd_[part] = std::make_shared<torch::optim::SGD>(trained(*model_->part(part)), learning_rate);
}

std::string TrainingRun::run() {
  for (std::size_t i = 0; i < program_.iterations.size(); ++i) {
    const std::string wrong = run_iteration(program_.iterations[i]);
    // A failure of one rank ends the program on all ranks.
    for (const std::string& of_rank : status_.all_gather_object(wrong)) {
      if (!of_rank.empty()) return "iteration " + std::to_string(i) + ": " + of_rank;
    }
  }
  return "";
}

std::string TrainingRun::run_iteration(const TrainingIteration& iteration) {
  std::string error;
  try {
    for (const TrainingMove& move : iteration.moves) run_move(move);
  } catch (const TimeoutError& timeout) {
    return std::string("a timeout: ") + timeout.what();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  std::string all;
  int failed = 0;
  const auto errors = status_.all_gather_object(error);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    ++failed;
    all += " [" + std::to_string(rank) + "] " + errors[rank];
  }
  if (!found_.empty()) return found_;
  if (failed > 0 && failed < program_.ranks) return "an error that not all ranks had:" + all;
  if (failed > 0 && !iteration.is_refused) return "an error that nothing explains:" + all;
  if (failed == 0 && iteration.is_refused) return "a step of parameters that are not prepared was not refused";
  if (failed > 0) {
    ++refused_;
    recover();
    restart_replicas();
    return difference();
  }
  ++completed_;
  for (const TrainingMove& move : iteration.moves) run_on_one_process(move);
  synchronize_replica_buffers();
  return difference();
}

void TrainingRun::run_move(const TrainingMove& move) {
  std::optional<Optimizer>& optimizer = optimizers_[move.part];
  switch (move.verb) {
    case TrainingVerb::forward:
      losses_ = model_->losses(samples_of(move, status_.rank()));
      return;
    case TrainingVerb::backward:
      return accelerator_->backward(losses_[move.part]);
    case TrainingVerb::clip:
      accelerator_->clip_grad_norm_(trained(*model_->part(move.part)), largest_norm(move));
      return;
    case TrainingVerb::step:
      return optimizer->step();
    case TrainingVerb::zero:
      return optimizer->zero_grad();
    case TrainingVerb::gather:
      return gather(move);
    case TrainingVerb::unfreeze:
    case TrainingVerb::add_layer:
      grown_.push_back(move);
      return grow(move);
    case TrainingVerb::prepare:
      return prepare();
    case TrainingVerb::set_rate:
      return optimizer->set_learning_rate(rate_of(move));
    case TrainingVerb::set_rate_of_one_rank:
      if (status_.rank() + 1 == program_.ranks) optimizer->set_learning_rate(0.5 * optimizer->learning_rate());
      return;
    case TrainingVerb::resume:
      return resume();
  }
}

void TrainingRun::grow(const TrainingMove& move) {
  Part& part = model_->part(move.part);
  const at::Tensor parameter = move.verb == TrainingVerb::unfreeze ? part->unfreeze() : part->add_layer();
  sgd_[move.part]->add_param_group(torch::optim::OptimizerParamGroup({parameter}));
}

void TrainingRun::resume() {
  const std::string folder = status_.broadcast_object((folder_.path() / std::to_string(saves_++)).string());
  accelerator_->save_state({.folder = folder});
  optimizers_ = {};
  losses_ = {};
  accelerator_.reset();
  model_ = Parts(program_);
  start();
  for (const TrainingMove& move : grown_) grow(move);
  prepare();
  accelerator_->load_state(folder);
}

void TrainingRun::gather(const TrainingMove& move) {
  std::vector<at::Tensor> values;
  for (int rank = 0; rank < program_.ranks; ++rank) {
    values.push_back(random_tensor({2}, move.seed + static_cast<std::uint64_t>(rank), at::kComplexDouble));
  }
  const at::Tensor own = values[status_.rank()];
  at::Tensor sum = at::zeros({2}, at::kComplexDouble);
  for (const at::Tensor& value : values) sum = sum + value.conj();
  const auto expect = [this](const char* what, const at::Tensor& actual, const at::Tensor& expected) {
    if (!at::allclose(at::view_as_real(actual.resolve_conj()), at::view_as_real(expected.resolve_conj())))
      found_ = std::string("a wrong result of ") + what;
  };
  expect("gather()", accelerator_->gather(own.conj()), at::cat(values).conj());
  expect("reduce()", accelerator_->reduce(own.conj()), sum);
  expect("broadcast()", accelerator_->broadcast(own.conj()), values[0].conj());
  const at::Tensor negative = accelerator_->gather(at::imag(own.conj()));
  if (!at::equal(negative, at::imag(at::cat(values)).neg())) found_ = "a wrong result of gather() of negated memory";
}

void TrainingRun::prepare() {
  auto [model, first, second] = accelerator_->prepare(model_, sgd_[0], sgd_[1]);
  optimizers_ = {first, second};
}

void TrainingRun::recover() {
  for (auto& optimizer : optimizers_) optimizer->zero_grad();
  model_->zero_grad();
  prepare();
}

void TrainingRun::run_on_one_process(const TrainingMove& move) {
  for (int rank = 0; rank < program_.ranks; ++rank) {
    Replica& replica = replicas_[rank];
    Part& part = replica.model->part(move.part);
    const auto grow = [&](const at::Tensor& parameter) {
      if (rank == 0) replica_sgd_[move.part]->add_param_group(torch::optim::OptimizerParamGroup({parameter}));
    };
    if (move.verb == TrainingVerb::forward) replica.losses = replica.model->losses(samples_of(move, rank));
    if (move.verb == TrainingVerb::backward) replica.losses[move.part].backward();
    if (move.verb == TrainingVerb::unfreeze) grow(part->unfreeze());
    if (move.verb == TrainingVerb::add_layer) grow(part->add_layer());
    if (move.verb == TrainingVerb::zero) part->zero_grad();
  }
  if (move.verb == TrainingVerb::step) step_replicas(move.part);
  if (move.verb == TrainingVerb::set_rate) {
    for (auto& group : replica_sgd_[move.part]->param_groups()) group.options().set_lr(rate_of(move));
  }
  if (move.verb == TrainingVerb::clip) {
    average_gradients(move.part);
    torch::nn::utils::clip_grad_norm_(trained(*replicas_[0].model->part(move.part)), largest_norm(move));
    for (int rank = 1; rank < program_.ranks; ++rank) {
      const auto from = trained(*replicas_[0].model->part(move.part));
      const auto to = trained(*replicas_[rank].model->part(move.part));
      for (std::size_t i = 0; i < to.size(); ++i) to[i].mutable_grad() = from[i].grad().clone();
    }
  }
}

void TrainingRun::average_gradients(int part) {
  std::vector<std::vector<at::Tensor>> all;
  for (Replica& replica : replicas_) all.push_back(trained(*replica.model->part(part)));
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    at::Tensor mean = at::zeros_like(all[0][i]);
    for (const auto& of_rank : all) mean = mean + of_rank[i].grad() / program_.ranks;
    for (const auto& of_rank : all) of_rank[i].mutable_grad() = mean.detach().clone();
  }
}

void TrainingRun::step_replicas(int part) {
  average_gradients(part);
  replica_sgd_[part]->step();
  const at::NoGradGuard no_grad;
  const auto from = trained(*replicas_[0].model->part(part));
  for (int rank = 1; rank < program_.ranks; ++rank) {
    const auto to = trained(*replicas_[rank].model->part(part));
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
}

void TrainingRun::synchronize_replica_buffers() {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> all;
  for (Replica& replica : replicas_) all.push_back(replica.model->buffers());
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    at::Tensor value = all[0][i].clone();
    if (program_.buffer_sync == BufferSync::mean && value.is_floating_point()) {
      value.zero_();
      for (const auto& of_rank : all) value += of_rank[i] / program_.ranks;
    }
    for (const auto& of_rank : all) of_rank[i].copy_(value);
  }
}

// Copies what training has after an error: the replicas are made from the model's parameters and buffers.
void TrainingRun::restart_replicas() {
  const at::NoGradGuard no_grad;
  const auto copy = [](const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  };
  for (int rank = 0; rank < program_.ranks; ++rank) {
    Parts& replica = replicas_[rank].model;
    for (int part = 0; part < 2; ++part) {
      const auto missing = [&] {
        return replica->part(part)->parameters().size() < model_->part(part)->parameters().size();
      };
      while (missing()) {
        const at::Tensor added = replica->part(part)->add_layer();
        if (rank == 0) replica_sgd_[part]->add_param_group(torch::optim::OptimizerParamGroup({added}));
      }
      if (trained(*replica->part(part)).size() < trained(*model_->part(part)).size()) {
        const at::Tensor late = replica->part(part)->unfreeze();
        if (rank == 0) replica_sgd_[part]->add_param_group(torch::optim::OptimizerParamGroup({late}));
      }
    }
    copy(replica->parameters(), model_->parameters());
    copy(replica->buffers(), model_->buffers());
    replica->zero_grad();
  }
}

std::string TrainingRun::difference() const {
  std::ostringstream text;
  const auto compare = [&](const char* what, const auto& actual, const auto& expected) {
    for (const auto& item : actual) {
      if (at::allclose(item.value(), expected[item.key()], 1e-9, 1e-9)) continue;
      text << what << ' ' << item.key() << " on rank " << status_.rank() << " is\n"
           << item.value() << "\nwhere one process has\n"
           << expected[item.key()] << '\n';
    }
  };
  const Replica& replica = replicas_[status_.rank()];
  compare("parameter", model_->named_parameters(), replica.model->named_parameters());
  compare("buffer", model_->named_buffers(), replica.model->named_buffers());
  return text.str();
}

}  // namespace tutti::test
