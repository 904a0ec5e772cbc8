#pragma once
// The fields of LibTorch's optimizers, with PyTorch's names. One function for each type serves reading (const) and
// writing.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <type_traits>

namespace tutti {

template <typename T, typename... Candidates>
concept OneOf = (std::same_as<std::remove_const_t<T>, Candidates> || ...);

// Options: field(name, value).

template <OneOf<torch::optim::AdamOptions, torch::optim::AdamWOptions> Options, typename Field>
void visit_options(Options& options, Field field) {
  field("lr", options.lr());
  field("betas", options.betas());
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("amsgrad", options.amsgrad());
}

template <OneOf<torch::optim::SGDOptions> Options, typename Field>
void visit_options(Options& options, Field field) {
  field("lr", options.lr());
  field("momentum", options.momentum());
  field("dampening", options.dampening());
  field("weight_decay", options.weight_decay());
  field("nesterov", options.nesterov());
}

template <OneOf<torch::optim::RMSpropOptions> Options, typename Field>
void visit_options(Options& options, Field field) {
  field("lr", options.lr());
  field("alpha", options.alpha());
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("momentum", options.momentum());
  field("centered", options.centered());
}

template <OneOf<torch::optim::AdagradOptions> Options, typename Field>
void visit_options(Options& options, Field field) {
  field("lr", options.lr());
  field("lr_decay", options.lr_decay());
  field("weight_decay", options.weight_decay());
  field("initial_accumulator_value", options.initial_accumulator_value());
  field("eps", options.eps());
}

// State of one parameter: field(name, value, whether it is always present).

template <OneOf<torch::optim::AdamParamState, torch::optim::AdamWParamState> State, typename Field>
void visit_state(State& state, Field field) {
  field("step", state.step(), true);
  field("exp_avg", state.exp_avg(), true);
  field("exp_avg_sq", state.exp_avg_sq(), true);
  field("max_exp_avg_sq", state.max_exp_avg_sq(), false);  // with amsgrad
}

template <OneOf<torch::optim::SGDParamState> State, typename Field>
void visit_state(State& state, Field field) {
  field("momentum_buffer", state.momentum_buffer(), false);
}

template <OneOf<torch::optim::RMSpropParamState> State, typename Field>
void visit_state(State& state, Field field) {
  field("step", state.step(), true);
  field("square_avg", state.square_avg(), true);
  field("momentum_buffer", state.momentum_buffer(), false);  // with momentum
  field("grad_avg", state.grad_avg(), false);                // if centered
}

template <OneOf<torch::optim::AdagradParamState> State, typename Field>
void visit_state(State& state, Field field) {
  field("step", state.step(), true);
  field("sum", state.sum(), true);
}

}  // namespace tutti
