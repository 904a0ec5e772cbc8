// Compares the models of a run with the reference and with the other ranks.
#include <ATen/Functions.h>

#include <sstream>

#include "sync/random_moves_run.h"

namespace tutti::test {

std::string MovesRun::difference() const {
  const double tolerance = program_.parameters[0].dtype == at::kDouble ? 1e-9 : 1e-4;
  const auto compare = [&](const at::Tensor& actual, const at::Tensor& expected) {
    return actual.defined() == expected.defined() &&
           (!actual.defined() || at::allclose(actual.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance));
  };
  std::ostringstream text;
  for (int m = 0; m < 2; ++m) {
    const Model& model = models_[m];
    const auto gradients = model.reference->gradients();
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      const auto report = [&](const char* what, const at::Tensor& actual, const at::Tensor& expected) {
        text << what << i << " of " << (m == 0 ? "D" : "G") << " on rank " << status_.rank() << " is\n"
             << actual << "\nwhere one process has\n"
             << expected << '\n';
      };
      const at::Tensor now = model.parameters[i].detach();
      const at::Tensor expected = model.reference->parameters()[i].detach();
      if (!compare(now, expected)) report("parameter ", now, expected);
      if (model.reference->mean() == Mean::yes && !compare(model.parameters[i].grad(), gradients[i])) {
        report("the gradient of parameter ", model.parameters[i].grad(), gradients[i]);
      }
    }
  }
  for (const Held& held : held_) {
    if (held.values.defined() && !at::equal(held.handle, held.values)) {
      text << "a gradient of parameter " << held.parameter << " of " << (held.model == 0 ? "D" : "G")
           << " that the program holds was\n"
           << held.values << "\nand is\n"
           << held.handle << '\n';
    }
  }
  return text.str();
}

std::string MovesRun::difference_between_ranks() const {
  for (const at::Tensor& parameter : parameters()) {
    const at::Tensor own = parameter.detach().contiguous();
    const at::Tensor first = own.clone();
    status_.broadcast(first).wait();
    if (!at::equal(own, first)) return "parameters differ between ranks";
  }
  return "";
}

}  // namespace tutti::test
