// Tensors whose memory does not hold their values, outputs whose elements share memory, and outputs with gaps that were
// made in InferenceMode.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "comm/collective_checks.h"
#include "tutti/core/error.h"

namespace tutti::test {
namespace {

enum class Lazy { conjugated, negated, zero };

/// A tensor of `rank` whose memory does not hold its values. Sums of the values are exact.
at::Tensor lazy_of_rank(Lazy kind, int rank, std::int64_t elements) {
  const at::Tensor real = at::arange(elements, at::kDouble) + rank;
  if (kind == Lazy::conjugated) return at::complex(real, 2 * real + 1).conj();
  if (kind == Lazy::negated) return at::_neg_view(real);  // as the imaginary part of a conj(), but contiguous
  return at::_efficientzerotensor({elements}, at::kDouble);
}

at::Tensor lazy_of_ranks(Lazy kind, int size, std::int64_t elements) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(lazy_of_rank(kind, rank, elements));
  return at::cat(parts);
}

void check_lazy_inputs(const Communicator& communicator, Lazy kind, std::int64_t elements) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  const at::Tensor own = lazy_of_rank(kind, rank, elements);
  const at::Tensor all = lazy_of_ranks(kind, size, elements);
  const at::Tensor sum = all.view({size, elements}).sum(0);
  const auto plain = [&own](std::int64_t count) { return at::zeros({count}, own.options()); };

  const at::Tensor gathered = plain(size * elements);
  communicator.all_gather(gathered, own).wait();
  EXPECT_TRUE(at::equal(gathered, all));

  const at::Tensor scattered = plain(elements);
  communicator.reduce_scatter(scattered, lazy_of_rank(kind, rank, size * elements)).wait();
  at::Tensor whole = lazy_of_rank(kind, 0, size * elements).clone();
  for (int other = 1; other < size; ++other) whole += lazy_of_rank(kind, other, size * elements);
  EXPECT_TRUE(at::equal(scattered, whole.narrow(0, rank * elements, elements)));

  const at::Tensor exchanged = plain(size * elements);
  communicator.all_to_all(exchanged, lazy_of_rank(kind, rank, size * elements)).wait();
  for (int other = 0; other < size; ++other) {
    EXPECT_TRUE(at::equal(exchanged.narrow(0, other * elements, elements),
                          lazy_of_rank(kind, other, size * elements).narrow(0, rank * elements, elements)));
  }

  const std::vector<at::Tensor> inputs(static_cast<std::size_t>(size), own);
  std::vector<at::Tensor> outputs;
  for (int other = 0; other < size; ++other) outputs.push_back(plain(elements));
  communicator.all_to_all_v(outputs, inputs).wait();
  for (int other = 0; other < size; ++other) {
    EXPECT_TRUE(at::equal(outputs[static_cast<std::size_t>(other)], lazy_of_rank(kind, other, elements)));
  }
  communicator.gather(rank == 0 ? outputs : std::vector<at::Tensor>(), own).wait();
  if (rank == 0) {
    EXPECT_TRUE(at::equal(at::cat(outputs), all));
  }
  communicator.scatter(scattered, rank == 0 ? inputs : std::vector<at::Tensor>()).wait();
  EXPECT_TRUE(at::equal(scattered, lazy_of_rank(kind, 0, elements)));

  // Tensors that are input and output get the values of the result. A zero tensor cannot be written.
  const auto in_place = [&] { return kind == Lazy::zero ? plain(elements) : lazy_of_rank(kind, rank, elements); };
  const at::Tensor reduced = in_place();
  communicator.all_reduce(reduced).wait();
  EXPECT_TRUE(at::equal(reduced, sum));
  const at::Tensor of_root = in_place();
  communicator.reduce(of_root).wait();
  EXPECT_TRUE(at::equal(of_root, rank == 0 ? sum : own));
  const at::Tensor copied = in_place();
  communicator.broadcast(copied, size - 1).wait();
  EXPECT_TRUE(at::equal(copied, lazy_of_rank(kind, size - 1, elements)));

  if (size == 1) return;
  const at::Tensor received = in_place();
  const Work sent = communicator.send(own, (rank + 1) % size);
  communicator.receive(received, (rank + size - 1) % size).wait();
  sent.wait();
  EXPECT_TRUE(at::equal(received, lazy_of_rank(kind, (rank + size - 1) % size, elements)));
}

/// Outputs whose elements share memory are refused before anything is sent.
void check_outputs_that_share_memory(const Communicator& communicator) {
  const std::int64_t size = communicator.size();
  const at::Tensor row = at::ones({1, 3});
  for (const at::Tensor& tensor :
       {row.expand({2 * size, 3}), at::ones({6 * size + 2}).unfold(0, 3, 1).narrow(0, 0, 2 * size)}) {
    EXPECT_THROW(communicator.all_reduce(tensor), UsageError);
    EXPECT_THROW(communicator.broadcast(tensor), UsageError);
    EXPECT_THROW(communicator.all_gather(tensor, at::ones({2, 3})), UsageError);
    EXPECT_THROW(communicator.all_to_all(tensor, at::ones({2 * size, 3})), UsageError);
    EXPECT_THROW(communicator.reduce_scatter(tensor, at::ones({2 * size * size, 3})), UsageError);
    EXPECT_THROW(communicator.scatter(tensor, {}, static_cast<int>(size) - 1), UsageError);
    if (size > 1) {
      EXPECT_THROW(communicator.receive(tensor, communicator.rank() == 0 ? 1 : 0), UsageError);
    }
  }
  EXPECT_THROW(communicator.all_reduce(at::_efficientzerotensor({3}, at::kFloat)), UsageError);
  EXPECT_TRUE(at::equal(row, at::ones({1, 3})));
  // As inputs they are right, and gaps between elements are not shared memory.
  const at::Tensor gathered = at::zeros({size, 2, 3});
  communicator.all_gather(gathered, row.expand({2, 3})).wait();
  EXPECT_TRUE(at::equal(gathered, at::ones({size, 2, 3})));
  const at::Tensor every_second = at::zeros({3, 4}).slice(1, 0, 4, 2).t();
  communicator.all_reduce(every_second.fill_(1)).wait();
  EXPECT_TRUE(at::equal(every_second, at::full({2, 3}, size, at::kFloat)));
}

/// A thread of the library, which is not in InferenceMode, writes the results to the outputs.
void check_outputs_of_inference_mode(const Communicator& communicator) {
  const c10::InferenceMode inference;
  const std::int64_t size = communicator.size();
  for (const std::int64_t rows : {4, 65536}) {
    const at::Tensor ones = at::ones({rows, 4});
    const auto transposed = [rows](std::int64_t columns) { return at::zeros({columns, rows}).t(); };
    const at::Tensor summed = transposed(4).fill_(1);
    communicator.all_reduce(summed).wait();
    EXPECT_TRUE(at::equal(summed, ones * size));
    const at::Tensor copied = transposed(4).fill_(communicator.rank());
    communicator.broadcast(copied, communicator.size() - 1).wait();
    EXPECT_TRUE(at::equal(copied, ones * (size - 1)));
    const at::Tensor gathered = transposed(4 * size);
    communicator.all_gather(gathered, ones).wait();
    EXPECT_TRUE(at::equal(gathered, at::ones({rows, 4 * size})));
    const at::Tensor of_root = at::zeros({rows, 4, size});
    communicator.gather(communicator.rank() == 0 ? of_root.unbind(2) : std::vector<at::Tensor>(), ones).wait();
    EXPECT_EQ(of_root.sum().item<double>(), communicator.rank() == 0 ? 4.0 * static_cast<double>(rows * size) : 0);
  }
}

}  // namespace

void check_lazy_tensors(const Communicator& communicator) {
  for (const Lazy kind : {Lazy::conjugated, Lazy::negated, Lazy::zero}) {
    for (const std::int64_t elements : {1, 3, 20011}) check_lazy_inputs(communicator, kind, elements);
  }
  check_outputs_that_share_memory(communicator);
  check_outputs_of_inference_mode(communicator);
  if (communicator.size() == 1) return;
  // Receiving into a lazy copy does not change the original.
  const at::Tensor original = at::zeros({5});
  const at::Tensor copy = at::_lazy_clone(original);
  const int size = communicator.size();
  const Work sent = communicator.send(at::ones({5}), (communicator.rank() + 1) % size);
  communicator.receive(copy, (communicator.rank() + size - 1) % size).wait();
  sent.wait();
  EXPECT_TRUE(at::equal(copy, at::ones({5})));
  EXPECT_TRUE(at::equal(original, at::zeros({5})));
}

}  // namespace tutti::test
