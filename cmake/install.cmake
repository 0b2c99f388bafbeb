# cmake --install BUILD --prefix P: the program and its configs, libhysparse with its header, a CMake package
# (find_package(hysparse), target hysparse::hysparse) and a pkg-config file. Everything is found relative to P.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/hysparse)

install(TARGETS hysparse RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/hysparse FILES_MATCHING PATTERN *.json)
# apps/shipped.cpp looks for them from the program's place.
install(DIRECTORY models DESTINATION ${CMAKE_INSTALL_DATADIR}/hysparse)
install(DIRECTORY data/en DESTINATION ${CMAKE_INSTALL_DATADIR}/hysparse/data)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(TARGETS hysparse_c EXPORT hysparse LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/hysparse/hysparse.h include/hysparse/status.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hysparse)
install(EXPORT hysparse FILE hysparse-targets.cmake NAMESPACE hysparse:: DESTINATION ${package})
configure_package_config_file(cmake/hysparse-config.cmake.in ${CMAKE_BINARY_DIR}/hysparse-config.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/hysparse-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/hysparse-config.cmake ${CMAKE_BINARY_DIR}/hysparse-config-version.cmake
  DESTINATION ${package})
# From the folder of the .pc file up to the prefix.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/hysparse.pc.in ${CMAKE_BINARY_DIR}/hysparse.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/hysparse.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET hysparse_cuda)
  install(TARGETS hysparse_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY include/hysparse DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN cuda*.h)
endif()

# The Python package with the library inside it: what `pip install .` packs (pyproject.toml).
install(DIRECTORY python/hysparse DESTINATION . COMPONENT python EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN *.py PATTERN py.typed PATTERN __pycache__ EXCLUDE)
install(PROGRAMS $<TARGET_FILE:hysparse_c> DESTINATION hysparse RENAME libhysparse.so
  COMPONENT python EXCLUDE_FROM_ALL)
