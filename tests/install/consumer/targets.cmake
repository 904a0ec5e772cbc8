# The training as a program, and as a library that Python can load.
add_library(consumer_training OBJECT ${CMAKE_CURRENT_LIST_DIR}/training.cpp)
set_target_properties(consumer_training PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_link_libraries(consumer_training PUBLIC tutti::tutti)
add_executable(consumer ${CMAKE_CURRENT_LIST_DIR}/main.cpp)
target_link_libraries(consumer PRIVATE consumer_training)
add_library(consumer_module MODULE EXCLUDE_FROM_ALL $<TARGET_OBJECTS:consumer_training>)
set_target_properties(consumer_module PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(consumer_module PRIVATE tutti::tutti)
