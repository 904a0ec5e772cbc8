#include "comm/backend/describe.h"

#include <algorithm>
#include <cctype>

namespace tutti::comm {

std::string describe_tensor(const at::Tensor& tensor) {
  std::string dtype = c10::toString(tensor.scalar_type());
  std::transform(dtype.begin(), dtype.end(), dtype.begin(),
                 [](unsigned char character) { return std::tolower(character); });
  std::string sizes;
  for (const auto size : tensor.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return dtype + " [" + sizes + "]" + describe_device_type(tensor);
}

std::string describe_device_type(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return "";
  return " on " + c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true);
}

}  // namespace tutti::comm
