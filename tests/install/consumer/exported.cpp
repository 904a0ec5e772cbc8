// A program that links tutti::exported alone, which brings tutti::tutti and LibTorch.
#include <tutti/core/error.h>
#include <tutti/exported/exported_module.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const tutti::ExportedModule model(argv[1]);
    std::cout << "consumer: " << model.parameters().size() << " parameters\n";
  } catch (const tutti::CheckpointError& error) {
    std::cout << "consumer: " << error.what() << '\n';
  }
}
