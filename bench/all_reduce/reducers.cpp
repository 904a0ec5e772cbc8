#include "all_reduce/reducers.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::bench {
namespace {

class TuttiAllReduce final : public AllReducer {
 public:
  TuttiAllReduce(std::string name, Communicator communicator)
      : name_(std::move(name)), communicator_(std::move(communicator)) {}
  std::string name() const override { return name_; }
  void sum(const at::Tensor& tensor) override { communicator_.all_reduce(tensor).wait(); }

 private:
  std::string name_;
  Communicator communicator_;
};

/// The calls of a gradient reducer, which needs the mean.
class TuttiGradients final : public AllReducer {
 public:
  explicit TuttiGradients(const Communicator& communicator) : communicator_(communicator) {}
  std::string name() const override { return tutti_gradients; }
  at::Tensor allocate(std::int64_t elements, at::ScalarType dtype) const override {
    return communicator_.allocate(elements * static_cast<std::int64_t>(c10::elementSize(dtype))).view(dtype);
  }
  void sum(const at::Tensor& tensor) override {
    const auto pending = communicator_.start_all_reduce(tensor);
    pending->finish_reduce_scatter(scale());
    pending->wait();
  }
  double scale() const override { return 1.0 / communicator_.size(); }

 private:
  comm::GradientCommunicator communicator_;
};

class C10dGloo final : public AllReducer {
 public:
  explicit C10dGloo(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}
  std::string name() const override { return c10d_gloo; }
  void sum(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors{tensor};
    group_->allreduce(tensors)->wait();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

at::Tensor AllReducer::allocate(std::int64_t elements, at::ScalarType dtype) const {
  return at::empty({elements}, dtype);
}

AllReducers make_tutti_reducers(const Communicator& communicator, const std::string& backend) {
  AllReducers reducers;
  if (backend == "auto") {
    reducers.push_back(std::make_unique<TuttiGradients>(communicator));
    reducers.push_back(std::make_unique<TuttiAllReduce>(tutti_all_reduce, communicator));
  } else {
    reducers.push_back(std::make_unique<TuttiAllReduce>("tutti over " + backend, communicator));
  }
  return reducers;
}

std::unique_ptr<AllReducer> make_c10d_reducer(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return std::make_unique<C10dGloo>(std::move(group));
}

}  // namespace tutti::bench
