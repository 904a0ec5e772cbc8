#pragma once
// The part of one gradient in the square of a norm.
#include <ATen/core/TensorBody.h>

namespace tutti {

/// Returns the sum of the squares of all elements, in double. For float and narrower dtypes the bits do not depend on
/// the number of threads or the CPU. `tensor` must be real, strided and on the CPU.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace tutti
