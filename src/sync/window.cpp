#include "tutti/sync/window.h"

#include "tutti/core/error.h"

namespace tutti {

void Window::begin_plain_pass() {
  if (weighting_ == Weighting::weighted) {
    throw UsageError(
        "a backward pass outside accumulate() in a window whose other passes were inside: their weights would not "
        "apply to it. Call optimizer.step() or zero_grad() in between, or put all passes into accumulate()");
  }
  weighting_ = Weighting::plain;
  ++passes_;
}

void Window::begin_weighted_pass() {
  weigh(0);
  ++passes_;
}

void Window::weigh(double weight) {
  if (weighting_ == Weighting::plain) {
    throw UsageError(
        "a backward pass inside accumulate() in a window whose other passes were outside: they have no weights. Call "
        "optimizer.step() or zero_grad() in between, or put all passes into accumulate()");
  }
  weighting_ = Weighting::weighted;
  weight_ += weight;
}

void Window::restart(bool stepped) {
  if (stepped) {
    ++steps_;
    if (passes_ > 0) lengths_ = {.last = passes_, .before = lengths_.last};
  }
  weighting_ = Weighting::undecided;
  passes_ = pending_ = rounds_ = 0;
  weight_ = 0;
}

}  // namespace tutti
