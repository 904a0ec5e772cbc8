#pragma once
// What a gradient adds to the square of a norm.
#include <ATen/core/TensorBody.h>

namespace tutti {

/// The sum of the squares of all elements, in double. For float and narrower types the same bits on any number of
/// threads and on any CPU. The tensor is real, strided and on the CPU.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace tutti
