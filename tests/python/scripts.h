#pragma once
// The scripts of this folder, started by `tutti launch` as ranks of a Python that has PyTorch.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/tutti_process.h"

namespace tutti::test {

/// Runs tests/python/`script`, or that of a whole path, as so many ranks, with what the build has made of python/ in
/// the way of imports.
Finished run_script(const std::string& python, const std::string& script, int ranks,
                    const std::vector<std::string>& arguments = {}, const std::vector<std::string>& options = {});

/// Tests that need a Python with PyTorch.
class WithPyTorch : public testing::Test {
 protected:
  void SetUp() override;
  void expect_success(const std::string& script, int ranks, const std::vector<std::string>& arguments = {}) const;

  std::string python_;
};

}  // namespace tutti::test
