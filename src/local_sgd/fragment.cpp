#include "local_sgd/fragment.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "local_sgd/check_options.h"
#include "local_sgd/outer_step.h"

namespace tutti::local_sgd {

Fragment::Fragment(FragmentPlan plan, const TrainedParameters& parameters, const LocalSgdAlgorithmOptions& options,
                   at::Tensor flat)
    : plan_(std::move(plan)), parameters_(parameters), options_(options), flat_(std::move(flat)) {
  const at::ScalarType dtype = parameters.any_double() ? at::kDouble : at::kFloat;
  if (parameters.any_on_accelerator()) staging_ = std::make_unique<StagingBuffer>(plan_.elements, dtype);
  if (!needs_anchor(parameters, options)) return;
  anchor_ = at::empty({plan_.elements}, dtype);
  if (keeps_momentum(options)) momentum_ = at::zeros_like(anchor_);
  if (options.streaming.keep_local_progress) sent_ = at::zeros_like(anchor_);
  set_anchor();
}

// Doubles are sent as fp32 differences from the anchor, so they keep their precision.
bool Fragment::needs_anchor(const TrainedParameters& parameters, const LocalSgdAlgorithmOptions& options) {
  return options.outer_optimizer != OuterOptimizer::average || options.wire != WireFormat::fp32 || streams(options) ||
         parameters.any_double();
}

at::Tensor Fragment::part(const at::Tensor& flat, const Piece& piece) const {
  return flat.slice(0, piece.begin, piece.begin + piece.length);
}

std::vector<at::Tensor> Fragment::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const Piece& piece : plan_.pieces) tensors.push_back(parameters_.at(piece));
  return tensors;
}

at::Tensor Fragment::values_of(const Piece& piece) const {
  return staging_ ? part(staging_->values(), piece) : parameters_.at(piece);
}

void Fragment::set_anchor() {
  if (!anchor_.defined()) return;
  if (staging_) {
    staging_->start_read(tensors());
    staging_->finish_read();
  }
  for (const Piece& piece : plan_.pieces) part(anchor_, piece).copy_(values_of(piece));
}

void Fragment::start_collect() {
  if (staging_) {
    staging_->start_read(tensors());
  } else {
    collect();
  }
}

void Fragment::finish_collect() {
  if (!staging_) return;
  staging_->finish_read();
  collect();
}

void Fragment::collect() {
  for (const Piece& piece : plan_.pieces) {
    at::Tensor to = part(flat_, piece);
    const at::Tensor values = values_of(piece);
    if (sent_.defined()) part(sent_, piece).copy_(values);
    if (anchor_.defined()) {
      at::sub_out(to, values, part(anchor_, piece));
    } else {
      to.copy_(values);
    }
  }
}

void Fragment::apply_node_mean() {
  for (const Piece& piece : plan_.pieces) {
    const at::Tensor values = values_of(piece);
    if (anchor_.defined()) {
      values.copy_(part(anchor_, piece).add(part(flat_, piece)));
    } else {
      values.copy_(part(flat_, piece));
    }
  }
  if (staging_) staging_->write_to(tensors());
}

void Fragment::apply(bool late, const std::vector<double>& inner_rates) {
  if (!anchor_.defined()) return apply_node_mean();
  for (const Piece& piece : plan_.pieces) {
    const at::Tensor anchor = part(anchor_, piece);
    const double rate = inner_rates.empty() ? 1 : inner_rates[static_cast<std::size_t>(piece.parameter)];
    outer_step(options_, anchor, momentum_.defined() ? part(momentum_, piece) : momentum_, part(flat_, piece), rate);
    if (staging_) continue;
    const at::Tensor parameter = parameters_.at(piece);
    const double mix = options_.streaming.mix;
    if (late && sent_.defined()) {
      parameter.add_(at::sub(anchor, part(sent_, piece)));
    } else if (late && mix != 0) {
      parameter.mul_(mix).add_(anchor, 1 - mix);
    } else {
      parameter.copy_(anchor);
    }
  }
  if (staging_) write_staged(late);
}

/// The same for parameters on an accelerator. They have changed since they were read, so they are updated there.
void Fragment::write_staged(bool late) {
  at::Tensor values = staging_->values();
  if (late && sent_.defined()) {
    at::sub_out(values, anchor_, sent_);
    return staging_->add_to(tensors());
  }
  values.copy_(anchor_);
  if (late && options_.streaming.mix != 0) {
    staging_->mix_into(tensors(), options_.streaming.mix);
  } else {
    staging_->write_to(tensors());
  }
}

}  // namespace tutti::local_sgd
