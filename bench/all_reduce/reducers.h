#pragma once
// The systems under comparison, each of which sums a tensor over all ranks.
#include <ATen/core/TensorBody.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Names of the columns.
inline constexpr const char* tutti_all_reduce = "tutti all_reduce";
inline constexpr const char* tutti_gradients = "tutti gradients";
inline constexpr const char* c10d_gloo = "c10d Gloo";
inline constexpr const char* mpi = "MPI";
inline constexpr const char* plain_socket = "plain socket";
inline constexpr const char* bare_sum = "bare sum";

class AllReducer {
 public:
  virtual ~AllReducer() = default;
  virtual std::string name() const = 0;
  /// Allocates a tensor that sum() accepts. Every rank must call it.
  virtual at::Tensor allocate(std::int64_t elements, at::ScalarType dtype) const;
  /// Sums `tensor` over all ranks, in place, times scale(). Every rank must call it.
  virtual void sum(const at::Tensor& tensor) = 0;
  virtual double scale() const { return 1; }
};

using AllReducers = std::vector<std::unique_ptr<AllReducer>>;

/// Returns Communicator::all_reduce and the sum of gradients for the backend "auto", for another backend only the
/// first.
AllReducers make_tutti_reducers(const Communicator& communicator, const std::string& backend);

std::unique_ptr<AllReducer> make_c10d_reducer(c10::intrusive_ptr<c10d::ProcessGroup> group);

/// The least that a transport must do. Every rank must call it; `communicator` exchanges the addresses.
std::unique_ptr<AllReducer> make_plain_socket_reducer(const Communicator& communicator, const Environment& environment);

}  // namespace tutti::bench
